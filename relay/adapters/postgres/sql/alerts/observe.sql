-- Compare the conditions of now with those that are known, and make causes of what is new, what has lasted for long,
-- and what has ended. Only a place that answered can show that a condition has ended.
WITH found AS (
    SELECT DISTINCT ON (code, subject_type, subject) code, place, subject_type, subject, reason
    FROM unnest(%(codes)s::text[], %(places)s::text[], %(subject_types)s::text[], %(subjects)s::text[],
                %(reasons)s::text[]) AS it (code, place, subject_type, subject, reason)
), begun AS (
    INSERT INTO alert_conditions (code, place, subject_type, subject, reason)
    SELECT code, place, subject_type, subject, left(reason, 500) FROM found
    ON CONFLICT DO NOTHING
    RETURNING code, subject_type, subject, reason, since
), lasting AS (
    UPDATE alert_conditions AS known
    SET alerted_at = clock_timestamp(), reason = left(found.reason, 500)
    FROM found
    WHERE (known.code, known.subject_type, known.subject) = (found.code, found.subject_type, found.subject)
      AND known.alerted_at <= clock_timestamp() - %(repeat)s::interval
    RETURNING known.code, known.subject_type, known.subject, known.reason, known.since
), ended AS (
    DELETE FROM alert_conditions AS known
    WHERE known.place = ANY (%(looked)s::text[])
      AND NOT EXISTS (
          SELECT FROM found
          WHERE (known.code, known.subject_type, known.subject) = (found.code, found.subject_type, found.subject))
    RETURNING known.code, known.subject_type, known.subject, known.reason, known.since
)
INSERT INTO alerts (class, state, subject_type, subject, reason, since, about)
SELECT 'condition', state, subject_type, subject, reason, since, jsonb_build_object('code', code)
FROM (SELECT 'raised', * FROM begun
      UNION ALL SELECT 'lasting', * FROM lasting
      UNION ALL SELECT 'resolved', * FROM ended)
     AS changed (state, code, subject_type, subject, reason, since)
