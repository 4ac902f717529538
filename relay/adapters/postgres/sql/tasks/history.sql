-- What operators did to one task, oldest first.
SELECT at, actor, action, note
FROM audit_log
WHERE action LIKE 'tasks.%%' AND %(id)s::text = ANY (ids)
ORDER BY id
