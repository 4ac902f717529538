-- Of these persons, those who have a key here from before they were forgotten elsewhere.
SELECT DISTINCT k.subject
FROM unnest(%(subjects)s::text[], %(times)s::timestamptz[]) AS t (subject, forgotten_at)
JOIN subject_keys AS k ON k.subject = t.subject
WHERE k.forgotten_at IS NULL AND k.created_at < t.forgotten_at
ORDER BY k.subject
