-- The handler is done with the message. Fenced by the token of the claim. Does nothing once the message is
-- rejected: a handler that outlives its time-out still has the token.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
    next_attempt_at = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
  AND dead_letter_reason IS NULL
