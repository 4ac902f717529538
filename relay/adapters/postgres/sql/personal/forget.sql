-- Destroy the keys of a person. The rows stay. Of those that were destroyed before, the time stays, too.
WITH destroyed AS (
    UPDATE subject_keys
    SET wrapped = NULL, forgotten_at = clock_timestamp()
    WHERE subject = %(subject)s AND forgotten_at IS NULL
    RETURNING id, created_at, forgotten_at, true AS now
)
SELECT id, created_at, forgotten_at, now FROM destroyed
UNION ALL
SELECT id, created_at, forgotten_at, false FROM subject_keys
WHERE subject = %(subject)s AND forgotten_at IS NOT NULL
ORDER BY created_at, id
