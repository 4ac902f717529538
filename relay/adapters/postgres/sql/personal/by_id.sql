-- Keys by their ids; `wrapped` is null if the person was forgotten.
SELECT id, master, wrapped
FROM subject_keys
WHERE id = ANY(%(ids)s::uuid[])
