-- The handler is done: alone, or at the end of a function's transaction. Fenced by the claim's token. If the claim is
-- lost, this divides by zero: the error stops the COMMIT that was sent together with it. The row in processed_events
-- outlives this one.
-- IS NOT DISTINCT FROM replaces = here and wherever a claimed task is settled. With =, the planner might read the
-- whole index of running tasks instead of the primary key, if its statistics say that this index is empty.
WITH done AS (
    UPDATE task_outbox
    SET status = 'completed', finished_at = clock_timestamp(), claim_token = NULL, claimed_until = NULL,
        next_attempt_at = NULL,
        attempt_log = CASE WHEN attempts > 1 THEN relay_noted(attempt_log, jsonb_build_object(
            'n', attempts, 'at', clock_timestamp(), 'claim', claim_token, 'outcome', 'completed'))
            ELSE attempt_log END
    WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
    RETURNING id, type
), noted AS (
    INSERT INTO processed_events (handler, message_id)
    SELECT 'task:' || type, id FROM done
    ON CONFLICT DO NOTHING
)
SELECT 1 / count(*) FROM done
