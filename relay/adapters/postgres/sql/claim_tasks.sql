-- As claim_task, for several tasks at once and under one token. Rows that somebody else has locked are passed over,
-- as nobody may wait for them here: claim_task has the last word on those. Of the others than the first only those
-- are taken that never began, so that unclaim_tasks can undo it, and that no running task of their key waits for.
-- As in claim_messages, the planner is not told how many ids there are, and the commit is not waited for.
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
    attempts = attempts + 1,
    waits_for = NULL
FROM free, relaxed
WHERE task.id = free.id
RETURNING claim_token AS token, task.id, type, payload::text, attempts, correlation_id, causation_id, metadata,
          concurrency_key,
          EXISTS (SELECT FROM processed_events
                  WHERE handler = 'task:' || task.type AND message_id = task.id) AS processed
