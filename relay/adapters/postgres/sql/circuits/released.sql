-- What has waited for the end of a pause is enqueued.
UPDATE handler_circuits
SET paused_until = NULL
WHERE subscription = %(subscription)s AND paused_until <= clock_timestamp()
