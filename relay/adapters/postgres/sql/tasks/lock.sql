-- Lock a task that has a limit, before it is claimed. This waits for a relay that is delivering it. A worker that
-- pauses before it commits loses its locks after five seconds.
WITH brief AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '5s', true))
SELECT concurrency_key, waits_for
FROM task_outbox, brief
WHERE id = %(id)s
  AND status IN ('pending', 'delivered')
  AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
  AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp() + interval '50 milliseconds')
  AND (available_at IS NULL OR available_at <= clock_timestamp() + interval '50 milliseconds')
FOR UPDATE OF task_outbox
