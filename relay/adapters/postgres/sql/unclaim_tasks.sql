-- Give back tasks that were claimed and not begun, as if nobody had taken them: they had never begun before. Each
-- is fenced by its token, which only a task that has not ended carries. The commit is not waited for: undone by a
-- crash it leaves a claim that runs out.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE task_outbox AS task
SET attempts = attempts - 1, started_at = NULL, claim_token = NULL, claimed_until = NULL
FROM relaxed, unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS ours (id, token)
WHERE task.id = ours.id
  AND task.claim_token IS NOT DISTINCT FROM ours.token
  AND task.attempts = 1
