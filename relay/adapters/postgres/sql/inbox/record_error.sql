-- The handler failed: record the error, set the time of the next attempt, release the claim. If it could not even be
-- called, this was no attempt: ``uncounted`` is 1. ``note``: about the attempt, see schema/attempts.sql.
UPDATE inbox_messages
SET last_error = %(error)s,
    attempt_log = relay_noted(attempt_log, %(note)s::jsonb || jsonb_build_object(
        'n', attempts, 'round', requeues, 'at', clock_timestamp(), 'claim', claim_token, 'next', clock_timestamp() + %(delay)s)),
    attempts = attempts - %(uncounted)s,
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s
