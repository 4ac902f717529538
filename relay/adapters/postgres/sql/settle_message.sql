-- As mark_processed, at the end of the transaction of a function. When the claim is not ours any more this divides
-- by zero: an error keeps the COMMIT that was sent along with it from running.
WITH done AS (
    UPDATE inbox_messages
    SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
        next_attempt_at = NULL
    WHERE message_id = %(message_id)s AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
      AND dead_letter_reason IS NULL
    RETURNING message_id)
SELECT 1 / count(*) FROM done
