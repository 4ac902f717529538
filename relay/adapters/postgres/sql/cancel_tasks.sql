-- Give up tasks that have not begun; what a queue still holds of them finds nothing to do.
UPDATE task_outbox
SET status = 'cancelled', finished_at = clock_timestamp(), next_attempt_at = NULL, waits_for = NULL,
    claim_token = NULL, claimed_until = NULL
WHERE id = ANY (%(ids)s::uuid[])
