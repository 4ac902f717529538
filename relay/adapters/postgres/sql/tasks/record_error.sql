-- The handler failed: record the error, set the time of the next attempt, release the claim.
UPDATE task_outbox
SET last_error = %(error)s,
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
