-- What operators did to events, messages' incidents and tasks, oldest first. Of its ids, those that are looked for.
SELECT id, at, actor, action, note,
       ARRAY(SELECT it FROM unnest(ids) AS it WHERE it = ANY (%(texts)s::text[]) LIMIT %(limit)s) AS ids
FROM audit_log
WHERE ids && %(texts)s::text[]
ORDER BY id
LIMIT %(limit)s
