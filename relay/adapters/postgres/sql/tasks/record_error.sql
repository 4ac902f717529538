-- The handler failed: record the error, set the time of the next attempt, release the claim. If it could not even be
-- called, this was no attempt: ``uncounted`` is 1. ``note``: about the attempt, see schema/attempts.sql.
UPDATE task_outbox
SET last_error = %(error)s,
    attempt_log = relay_noted(attempt_log, %(note)s::jsonb || jsonb_build_object(
        'n', attempts, 'at', clock_timestamp(), 'claim', claim_token, 'next', clock_timestamp() + %(delay)s)),
    attempts = attempts - %(uncounted)s,
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
