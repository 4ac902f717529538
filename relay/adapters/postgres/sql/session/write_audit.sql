-- Record who did what to which rows, and why, in the transaction that did it.
INSERT INTO audit_log (at, actor, action, ids, note, selection, undoes, about)
VALUES (clock_timestamp(), %(actor)s, %(action)s, %(ids)s::text[], %(note)s, %(selection)s::uuid, %(undoes)s::bigint,
        %(about)s::jsonb)
RETURNING id
