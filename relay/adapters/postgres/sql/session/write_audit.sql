-- Record who did what to which rows, and why, in the transaction that did it.
INSERT INTO audit_log (at, actor, action, ids, note)
VALUES (clock_timestamp(), %(actor)s, %(action)s, %(ids)s::text[], %(note)s)
