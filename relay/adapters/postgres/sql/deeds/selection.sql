-- A selection, and the act that has used it.
SELECT kind, action, ids, wanted, (SELECT a.id FROM audit_log AS a WHERE a.selection = s.id) AS deed
FROM selections AS s
WHERE id = %(id)s
