-- Dead letters by their own number, their messages or correlations.
SELECT id, message_id, subscription, event_type, recorded_at, class, reason, attempts, relay_incident_state(d) AS status,
       closed_at, closed_by,
       stream, stream_seq, correlation_id, causation_id, originals,
       left(coalesce(nullif(headers ->> 'traceparent', ''), headers ->> 'Traceparent'), 200) AS traceparent
FROM dead_letters AS d
WHERE id IN (
    SELECT id FROM dead_letters WHERE id = %(incident)s::bigint
    UNION ALL
    SELECT id FROM dead_letters WHERE message_id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT id FROM dead_letters WHERE originals ->> 'id' = ANY (%(texts)s::text[])
    UNION ALL
    SELECT id FROM dead_letters WHERE correlation_id = ANY (%(correlations)s::uuid[]))
ORDER BY id
LIMIT %(limit)s
