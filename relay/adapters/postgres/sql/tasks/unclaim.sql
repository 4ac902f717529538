-- Release tasks that were claimed and never begun, as if they had never been claimed. They had not begun before
-- either. Each is fenced by its token, which only an unfinished task has. This does not wait for the disk: if a
-- crash undoes it, the claim simply expires.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE task_outbox AS task
SET attempts = attempts - 1, started_at = NULL, claim_token = NULL, claimed_until = NULL
FROM relaxed, unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS ours (id, token)
WHERE task.id = ours.id
  AND task.claim_token IS NOT DISTINCT FROM ours.token
  AND task.attempts = 1
