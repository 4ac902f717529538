-- Wrap keys anew, unless they were destroyed or wrapped by somebody else meanwhile.
UPDATE subject_keys AS k
SET master = %(master)s, wrapped = t.wrapped
FROM unnest(%(ids)s::uuid[], %(formers)s::text[], %(wrapped)s::bytea[]) AS t (id, former, wrapped)
WHERE k.id = t.id AND k.master = t.former AND k.forgotten_at IS NULL
