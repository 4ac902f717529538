-- The handler failed: record the error, set the time of the next attempt, release the claim. If it could not even be
-- called, this was no attempt: ``uncounted`` is 1.
UPDATE task_outbox
SET last_error = %(error)s,
    attempts = attempts - %(uncounted)s,
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
