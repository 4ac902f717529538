-- The handler dealt with it. Fenced by the claim; the note in processed_events outlives the row. The token is
-- compared so, here and wherever a claimed task is settled, because PostgreSQL might otherwise read the whole index
-- of what runs instead of the id's: it takes it for empty when nothing ran the last time it looked.
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
SELECT id FROM done
