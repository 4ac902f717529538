-- As tasks/claim, for several tasks at once and under one token. This statement must not wait, so it skips rows
-- that another session has locked; tasks/claim decides on those. Apart from the first, it claims only tasks that
-- never began, so that tasks/unclaim can undo it, and that have no concurrency key: a claimed task counts as
-- running for its key. As in inbox/claim_many, the planner does not see how many ids there are. This does not wait
-- for the disk.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), free AS MATERIALIZED (
    SELECT id
    FROM task_outbox
    WHERE id = ANY (ARRAY(SELECT unnest(%(ids)s::uuid[])))
      AND (id = %(first)s OR (started_at IS NULL AND concurrency_key IS NULL))
      AND status IN ('pending', 'delivered')
      AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
      AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp() + interval '50 milliseconds')
      AND (available_at IS NULL OR available_at <= clock_timestamp() + interval '50 milliseconds')
    FOR UPDATE SKIP LOCKED)
UPDATE task_outbox AS task
SET status = 'delivered',
    delivered_at = coalesce(delivered_at, clock_timestamp()),
    enqueued_at = coalesce(enqueued_at, clock_timestamp()),
    started_at = clock_timestamp(),
    claim_token = %(token)s,
    claimed_until = clock_timestamp() + %(lease)s,
    attempts = least(attempts, 2147483646) + 1,
    waits_for = NULL
FROM free, relaxed
WHERE task.id = free.id
RETURNING claim_token AS token, task.id, type,
          CASE WHEN pg_column_size(jsonb_build_array(payload)) <= 16777216 AND relay_unpacks(payload)
               THEN payload::text ELSE '' END AS payload,
          attempts, correlation_id, causation_id,
          CASE WHEN jsonb_typeof(metadata) = 'object' AND relay_unpacks(metadata) THEN metadata ELSE '{}'
          END AS metadata,
          concurrency_key,
          CASE WHEN jsonb_typeof(originals) = 'object' AND relay_unpacks(originals) THEN originals
          END AS originals,
          EXISTS (SELECT FROM processed_events
                  WHERE handler = 'task:' || task.type AND message_id = task.id) AS processed,
          coalesce(available_at, created_at) AS due_at,
          coalesce(expires_at <= clock_timestamp(), false) AS stale
