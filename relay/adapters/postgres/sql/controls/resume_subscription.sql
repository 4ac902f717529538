-- End the pause of a subscription. The time stays until what has waited is enqueued: circuits/released.
UPDATE handler_circuits
SET paused_until = clock_timestamp()
WHERE subscription = %(name)s AND paused_until > clock_timestamp()
