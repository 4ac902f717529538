-- Who has destroyed keys.
SELECT key, actor
FROM audit_log, unnest(ids) AS key
WHERE action = 'personal.forget' AND ids && %(ids)s::text[] AND key = ANY(%(ids)s::text[])
