-- Events by their ids, correlations, texts or places in a stream; for chains without correlation also by their
-- cause.
SELECT id, event_type, event_version, aggregate_type, aggregate_id, occurred_at, correlation_id, causation_id, originals,
       partition_key, publish_attempts, publish_error, available_at, nullif(expires_at, 'infinity') AS expires_at, dead_at, published_at, published_stream,
       published_seq, generation,
       relay_attempts_in_short(attempt_log) AS attempt_log,
       left(coalesce(nullif(headers ->> 'traceparent', ''), headers ->> 'Traceparent'), 200) AS traceparent
FROM outbox_events
WHERE id IN (
    SELECT id FROM outbox_events WHERE id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT id FROM outbox_events WHERE correlation_id = ANY (%(correlations)s::uuid[])
    UNION ALL
    SELECT id FROM outbox_events WHERE originals ->> 'id' = ANY (%(texts)s::text[])
    UNION ALL
    SELECT id FROM outbox_events
    WHERE published_stream = %(stream)s::text AND published_seq = %(seq)s::bigint
    UNION ALL
    SELECT id FROM outbox_events WHERE causation_id = ANY (%(causes)s::uuid[]))
ORDER BY occurred_at, seq
LIMIT %(limit)s
