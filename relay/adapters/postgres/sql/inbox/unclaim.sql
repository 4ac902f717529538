-- Release messages that were claimed and never begun, as if they had never been claimed. They had not been tried
-- before. Each is fenced by its token. This does not wait for the disk: if a crash undoes it, the claim simply
-- expires.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages AS i
SET attempts = attempts - 1, claim_token = NULL, claimed_until = NULL
FROM relaxed, unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS ours (message_id, token)
WHERE i.message_id = ours.message_id
  AND i.claim_token = ours.token
  AND i.attempts = 1
  AND num_nonnulls(i.processed_at, i.dead_lettered_at, i.dead_letter_reason) = 0
