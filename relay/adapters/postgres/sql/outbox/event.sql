-- One outbox event with its payload, for an operator.
SELECT id, seq, aggregate_type, aggregate_id, event_type, event_version, occurred_at,
       correlation_id::text, causation_id::text, originals, partition_key, topic, stream,
       published_at, publish_attempts, publish_error, available_at, nullif(expires_at, 'infinity') AS expires_at, dead_at,
       published_stream, published_seq, generation,
       CASE WHEN published_at IS NOT NULL AND expires_at <= dead_at THEN 'expired'
            WHEN published_at IS NOT NULL AND dead_at IS NOT NULL THEN 'discarded'
            WHEN published_at IS NOT NULL THEN 'published'
            WHEN dead_at IS NOT NULL THEN 'dead'
            WHEN publish_attempts > 0 THEN 'failing'
            WHEN available_at > now() THEN 'delayed'
            ELSE 'waiting' END AS status,
       attempt_log, headers, payload
FROM outbox_events
WHERE id = %(id)s
