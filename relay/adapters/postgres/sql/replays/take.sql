-- Claim a replay that runs and that nobody reads: a worker that died with one has lost its claim.
UPDATE inbox_replays
SET claim_token = %(token)s, claimed_until = clock_timestamp() + %(lease)s
WHERE id = (
    SELECT id
    FROM inbox_replays
    WHERE state = 'running' AND subscription = ANY (%(subscriptions)s::text[])
      AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
    ORDER BY moved_at NULLS FIRST, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED)
RETURNING id, claim_token AS token, subscription, since, until, key, event_type, again, rate, asked_at, source,
          position, part, batch, last_position
