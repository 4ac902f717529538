-- As tasks/complete, at the end of a function's transaction. See inbox/settle.
WITH done AS (
    UPDATE task_outbox
    SET status = 'completed', finished_at = clock_timestamp(), claim_token = NULL, claimed_until = NULL,
        next_attempt_at = NULL
    WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
    RETURNING id, type
), noted AS (
    INSERT INTO processed_events (handler, message_id)
    SELECT 'task:' || type, id FROM done
    ON CONFLICT DO NOTHING
)
SELECT 1 / count(*) FROM done
