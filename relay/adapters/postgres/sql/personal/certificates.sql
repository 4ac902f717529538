-- What was redacted before, by whom, newest first.
SELECT actor, about, at
FROM audit_log
WHERE action = %(action)s
ORDER BY id DESC
LIMIT 1000
