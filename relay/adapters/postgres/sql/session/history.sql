-- What operators did to one row at last, oldest first: the actions on rows of its kind.
SELECT at, actor, action, note
FROM (SELECT id, at, actor, action, note
      FROM audit_log
      WHERE action LIKE %(actions)s AND %(id)s::text = ANY (ids)
      ORDER BY id DESC
      LIMIT 200) AS latest
ORDER BY id
