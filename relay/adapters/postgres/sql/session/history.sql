-- What operators did to one row, oldest first: the actions on rows of its kind.
SELECT at, actor, action, note
FROM audit_log
WHERE action LIKE %(actions)s AND %(id)s::text = ANY (ids)
ORDER BY id
