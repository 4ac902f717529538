-- The handler failed. Record the error, set the time of the next attempt, release the claim.
UPDATE inbox_messages
SET last_error = %(error)s,
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s
