-- Make keys, in the transaction of the events that need them. All writers take the persons in one order. If another
-- transaction makes the key of a person, this one waits for it and then reads that key.
INSERT INTO subject_keys (id, subject, master, wrapped)
SELECT id, subject, master, wrapped
FROM unnest(%(ids)s::uuid[], %(subjects)s::text[], %(masters)s::text[], %(wrapped)s::bytea[])
     AS t (id, subject, master, wrapped)
ORDER BY subject
ON CONFLICT (subject) WHERE forgotten_at IS NULL DO NOTHING
RETURNING subject
