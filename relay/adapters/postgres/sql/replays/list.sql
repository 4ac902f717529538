-- The latest replays, or one.
SELECT id, subscription, state, since, until, key, event_type, again, rate, source, position, last_position,
       added, repeated, skipped, error, asked_at, moved_at, ended_at, actor, note
FROM inbox_replays
WHERE %(id)s::bigint IS NULL OR id = %(id)s
ORDER BY id DESC
LIMIT %(limit)s
