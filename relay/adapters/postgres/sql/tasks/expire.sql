-- A task is over without a call: its time has passed. It ends as a cancelled one, and the claim's attempt was none.
UPDATE task_outbox
SET status = 'cancelled', finished_at = clock_timestamp(), last_error = %(error)s, attempts = greatest(0, attempts - 1),
    next_attempt_at = NULL, waits_for = NULL, claim_token = NULL, claimed_until = NULL
WHERE id = %(id)s AND claim_token = %(token)s
