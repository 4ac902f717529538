-- Outbox events that match a filter, the newest first, and how many match in all.
SELECT id, seq, aggregate_type, aggregate_id, event_type, event_version, occurred_at,
       correlation_id::text, causation_id::text, originals, partition_key, topic, stream,
       published_at, publish_attempts, publish_error, available_at, dead_at, published_stream, published_seq, generation,
       CASE WHEN published_at IS NOT NULL THEN 'published'
            WHEN dead_at IS NOT NULL THEN 'dead'
            WHEN publish_attempts > 0 THEN 'failing'
            ELSE 'waiting' END AS status,
       count(*) OVER () AS total
FROM outbox_events
WHERE (('published' = ANY (%(statuses)s::text[]) AND published_at IS NOT NULL)
       OR ('dead' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND dead_at IS NOT NULL)
       OR ('failing' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND publish_attempts > 0 AND dead_at IS NULL)
       OR ('waiting' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND publish_attempts = 0 AND dead_at IS NULL))
  AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s)
  AND (%(aggregate_type)s::text IS NULL OR aggregate_type = %(aggregate_type)s)
  AND (%(aggregate_id)s::text IS NULL OR aggregate_id = %(aggregate_id)s)
  AND (%(correlation_id)s::uuid IS NULL OR correlation_id = %(correlation_id)s)
  AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR occurred_at < %(until)s)
  AND (%(error)s::text IS NULL OR publish_error ~ %(error)s)
ORDER BY seq DESC
LIMIT %(limit)s
