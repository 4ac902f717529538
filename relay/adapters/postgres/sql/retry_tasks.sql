-- Give tasks that failed or were cancelled another life: attempts and back-off start again.
UPDATE task_outbox
SET status = 'pending', available_at = NULL, attempts = 0, delivered_at = NULL, enqueued_at = NULL,
    next_attempt_at = NULL, waits_for = NULL, finished_at = NULL
WHERE id = ANY (%(ids)s::uuid[])
