-- The persons who were forgotten last, and when.
SELECT subject, max(forgotten_at) AS forgotten_at
FROM subject_keys
WHERE forgotten_at IS NOT NULL
GROUP BY subject
ORDER BY max(forgotten_at) DESC
LIMIT %(limit)s
