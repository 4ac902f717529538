-- As inbox/mark_processed, at the end of a function's transaction. If the claim is lost, this divides by zero: the
-- error stops the COMMIT that was sent together with it.
WITH done AS (
    UPDATE inbox_messages
    SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
        next_attempt_at = NULL,
        attempt_log = CASE WHEN attempts > 1 THEN relay_noted(attempt_log, jsonb_build_object(
            'n', attempts, 'round', requeues, 'at', clock_timestamp(), 'claim', claim_token, 'outcome', 'processed'))
            ELSE attempt_log END
    WHERE message_id = %(message_id)s AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
      AND dead_letter_reason IS NULL
    RETURNING message_id)
SELECT 1 / count(*) FROM done
