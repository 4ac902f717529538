-- As inbox/mark_processed, for several rows at once, each fenced by its own token. This statement must not wait,
-- so it skips rows that another session has locked; inbox/mark_processed decides on those. As in inbox/claim_many,
-- the planner does not see how many ids there are.
WITH ours AS MATERIALIZED (
    SELECT message_id
    FROM inbox_messages
    WHERE message_id = ANY (ARRAY(SELECT unnest(%(ids)s::uuid[])))
      AND claim_token = (%(tokens)s::uuid[])[array_position(%(ids)s::uuid[], message_id)]
      AND num_nonnulls(processed_at) = 0
      AND dead_letter_reason IS NULL
    FOR UPDATE SKIP LOCKED)
UPDATE inbox_messages AS i
SET processed_at = greatest(clock_timestamp(), received_at), claim_token = NULL, claimed_until = NULL,
    next_attempt_at = NULL,
    attempt_log = CASE WHEN i.attempts > 1 THEN relay_noted(i.attempt_log, jsonb_build_object(
        'n', i.attempts, 'round', i.requeues, 'at', clock_timestamp(), 'claim', i.claim_token, 'outcome', 'processed'))
        ELSE i.attempt_log END
FROM ours
WHERE i.message_id = ours.message_id
RETURNING i.message_id
