-- What operators did to one event, oldest first.
SELECT at, actor, action, note
FROM audit_log
WHERE action LIKE 'outbox.%%' AND %(id)s::text = ANY (ids)
ORDER BY id
