-- The present keys of persons. As texts, whatever the application has registered for other types.
SELECT subject, id::text, master, encode(wrapped, 'base64')
FROM subject_keys
WHERE subject = ANY(%(subjects)s::text[]) AND forgotten_at IS NULL
