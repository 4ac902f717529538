-- The act that has undone another.
SELECT id FROM audit_log WHERE undoes = %(undoes)s
