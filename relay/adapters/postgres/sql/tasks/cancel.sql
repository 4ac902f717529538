-- Cancel tasks that have not begun. If a queue still holds one, its worker finds nothing to do.
UPDATE task_outbox
SET status = 'cancelled', finished_at = clock_timestamp(), next_attempt_at = NULL, waits_for = NULL,
    claim_token = NULL, claimed_until = NULL
WHERE id = ANY (%(ids)s::uuid[])
