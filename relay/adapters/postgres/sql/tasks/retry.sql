-- Try tasks again that failed or were cancelled, with new attempts and a new back-off.
UPDATE task_outbox
SET status = 'pending', available_at = NULL, attempts = 0, delivered_at = NULL, enqueued_at = NULL,
    next_attempt_at = NULL, waits_for = NULL, finished_at = NULL
WHERE id = ANY (%(ids)s::uuid[])
