-- Give back messages that were claimed and not begun, as if nobody had taken them: they had not been tried before.
-- Each is fenced by its token. The commit is not waited for: undone by a crash it leaves a claim that runs out.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages AS i
SET attempts = attempts - 1, claim_token = NULL, claimed_until = NULL
FROM relaxed, unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS ours (message_id, token)
WHERE i.message_id = ours.message_id
  AND i.claim_token = ours.token
  AND i.attempts = 1
  AND num_nonnulls(i.processed_at, i.dead_lettered_at, i.dead_letter_reason) = 0
