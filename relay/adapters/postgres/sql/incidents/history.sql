-- What operators did to one incident, oldest first.
SELECT at, actor, action, note
FROM audit_log
WHERE action LIKE 'dlq.%%' AND %(id)s::text = ANY (ids)
ORDER BY id
