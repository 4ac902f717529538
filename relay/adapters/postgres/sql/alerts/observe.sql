-- Compare the conditions of now with those that are known, and make causes of what is new, what has lasted for long,
-- and what has ended. Only a place that answered can show that a condition has ended.
WITH found AS (
    SELECT DISTINCT ON (code, subject_type, subject) code, place, subject_type, subject, reason, class, value
    FROM unnest(%(codes)s::text[], %(places)s::text[], %(subject_types)s::text[], %(subjects)s::text[],
                %(reasons)s::text[], %(classes)s::text[], %(values)s::float8[])
         AS it (code, place, subject_type, subject, reason, class, value)
), begun AS (
    INSERT INTO alert_conditions (code, place, subject_type, subject, reason, class, value)
    SELECT code, place, subject_type, subject, left(reason, 500), class, value FROM found
    ON CONFLICT DO NOTHING
    RETURNING code, subject_type, subject, reason, since, class
), lasting AS (
    UPDATE alert_conditions AS known
    SET alerted_at = CASE WHEN known.alerted_at <= clock_timestamp() - %(repeat)s::interval THEN clock_timestamp()
                          ELSE known.alerted_at END,
        reason = left(found.reason, 500), value = found.value
    FROM found
    WHERE (known.code, known.subject_type, known.subject) = (found.code, found.subject_type, found.subject)
      AND (known.alerted_at <= clock_timestamp() - %(repeat)s::interval
           OR known.value IS DISTINCT FROM found.value)
    RETURNING known.code, known.subject_type, known.subject, known.reason, known.since, known.class,
              known.alerted_at >= statement_timestamp() AS again
), ended AS (
    DELETE FROM alert_conditions AS known
    WHERE known.place = ANY (%(looked)s::text[])
      AND NOT EXISTS (
          SELECT FROM found
          WHERE (known.code, known.subject_type, known.subject) = (found.code, found.subject_type, found.subject))
    RETURNING known.code, known.subject_type, known.subject, known.reason, known.since, known.class
)
INSERT INTO alerts (class, state, subject_type, subject, reason, since, about)
SELECT class, state, subject_type, subject, reason, since, jsonb_build_object('code', code)
FROM (SELECT 'raised', code, subject_type, subject, reason, since, class FROM begun
      UNION ALL SELECT 'lasting', code, subject_type, subject, reason, since, class FROM lasting WHERE again
      UNION ALL SELECT 'resolved', code, subject_type, subject, reason, since, class FROM ended)
     AS changed (state, code, subject_type, subject, reason, since, class)
