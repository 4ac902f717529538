-- As tasks/settle, for several tasks at once, each fenced by its own token. This statement must not wait, so it
-- skips rows that another session has locked; tasks/settle decides on those. As in inbox/claim_many, the planner
-- does not see how many ids there are.
WITH ours AS MATERIALIZED (
    SELECT id
    FROM task_outbox
    WHERE id = ANY (ARRAY(SELECT unnest(%(ids)s::uuid[])))
      AND claim_token IS NOT DISTINCT FROM (%(tokens)s::uuid[])[array_position(%(ids)s::uuid[], id)]
    FOR UPDATE SKIP LOCKED
), done AS (
    UPDATE task_outbox AS task
    SET status = 'completed', finished_at = clock_timestamp(), claim_token = NULL, claimed_until = NULL,
        next_attempt_at = NULL,
        attempt_log = CASE WHEN task.attempts > 1 THEN relay_noted(task.attempt_log, jsonb_build_object(
            'n', task.attempts, 'at', clock_timestamp(), 'claim', task.claim_token, 'outcome', 'completed'))
            ELSE task.attempt_log END
    FROM ours
    WHERE task.id = ours.id
    RETURNING task.id, type
), noted AS (
    INSERT INTO processed_events (handler, message_id)
    SELECT 'task:' || type, id FROM done
    ON CONFLICT DO NOTHING
)
SELECT id FROM done
