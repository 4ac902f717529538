-- What operators did to events, messages' incidents and tasks, oldest first.
SELECT id, at, actor, action, note, ids
FROM audit_log
WHERE ids && %(texts)s::text[]
ORDER BY id
LIMIT %(limit)s
