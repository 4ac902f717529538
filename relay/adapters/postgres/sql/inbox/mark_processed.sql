-- The handler is done with messages of one claim's token, which fences them. Does nothing once a message is rejected:
-- a handler that outlives its time-out still has the token. A success after failures
-- is noted, from what the row has; the first attempt costs no note.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
    next_attempt_at = NULL,
    attempt_log = CASE WHEN attempts > 1 THEN relay_noted(attempt_log, jsonb_build_object(
        'n', attempts, 'round', requeues, 'at', clock_timestamp(), 'claim', claim_token, 'outcome', 'processed'))
        ELSE attempt_log END
WHERE message_id = ANY (%(ids)s::uuid[]) AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
  AND dead_letter_reason IS NULL
