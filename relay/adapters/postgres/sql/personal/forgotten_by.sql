-- Who has destroyed keys, by which act.
SELECT key, actor, id
FROM audit_log, unnest(ids) AS key
WHERE action = 'personal.forget' AND ids && %(ids)s::text[] AND key = ANY(%(ids)s::text[])
