-- Claim one task under a token and count the attempt. The queue may bring a pending task before the relay commits
-- its delivery; this waits for that commit. ``processed``: the effect of the task is committed, but this row does
-- not show it. A payload that cannot be unpacked is empty, and fits no handler. This does not wait for the disk: if a crash undoes a claim, the token fences off its worker.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE task_outbox AS task
SET status = 'delivered',
    delivered_at = coalesce(delivered_at, clock_timestamp()),
    enqueued_at = coalesce(enqueued_at, clock_timestamp()),
    started_at = clock_timestamp(),
    claim_token = %(token)s,
    claimed_until = clock_timestamp() + %(lease)s,
    attempts = least(attempts, 2147483646) + 1,
    waits_for = NULL
FROM relaxed
WHERE id = %(id)s
  AND status IN ('pending', 'delivered')
  AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
  AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp() + interval '50 milliseconds')
  AND (available_at IS NULL OR available_at <= clock_timestamp() + interval '50 milliseconds')
RETURNING claim_token AS token, id, type,
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
