-- All keys of a person.
SELECT id, created_at, forgotten_at
FROM subject_keys
WHERE subject = %(subject)s
ORDER BY created_at, id
