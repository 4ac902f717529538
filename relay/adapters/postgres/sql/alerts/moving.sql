-- Causes that wait for their alert, and incidents of which no cause was made yet. One may wait a minute for the alert
-- of its subject before, so neither counts earlier.
SELECT '' AS part, count(*) AS due,
       coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)::float8 - 60 AS due_seconds,
       coalesce((array_agg(head ORDER BY since))[1], '') AS head,
       (SELECT greatest(0, extract(epoch FROM clock_timestamp() - sent_at) - 60)::float8
        FROM alerts
        WHERE sent_at > '-infinity'
        ORDER BY sent_at DESC
        LIMIT 1) AS moved_seconds,
       false AS overtaken
FROM (
    (SELECT raised_at AS since, class || ' of ' || subject_type || ' ' || subject AS head
     FROM alerts
     WHERE sent_at IS NULL
     ORDER BY id
     LIMIT %(counted)s)
    UNION ALL
    (SELECT greatest(recorded_at, snoozed_until), 'dead_letter ' || id
     FROM dead_letters AS d
     WHERE alerted_at IS NULL AND status = 'open' AND relay_incident_state(d) = 'open'
     LIMIT %(counted)s)
) AS waiting
HAVING count(*) > 0
