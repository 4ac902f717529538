-- Causes that wait for their alert, the oldest first. Nobody needs to hear of a dead letter that is closed by now.
SELECT a.id, a.class, a.state, a.subject_type, a.subject, a.reason, a.since, a.about, a.told_at IS NOT NULL AS told,
       CASE WHEN a.class = 'dead_letter' THEN EXISTS (
                SELECT FROM dead_letters AS d
                WHERE d.id = (a.about ->> 'id')::bigint AND relay_incident_state(d) = 'open')
            ELSE true END AS open
FROM alerts AS a
WHERE a.sent_at IS NULL
ORDER BY a.id
LIMIT %(limit)s
