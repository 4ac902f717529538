-- The handler dealt with it. Fenced: only the holder of the claim may say so.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
    next_attempt_at = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s AND processed_at IS NULL
