-- Put archived rows back as they were. A row that is in its table stays as it is. That is also true for a row
-- whose id has the same text and another UUID: it was added after the first had left.
-- In a line, null is the JSON null of a column that cannot be empty.
INSERT INTO outbox_events (
  id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
  causation_id, published_at, publish_attempts, publish_error, seq, partition_key, topic, headers, available_at,
  dead_at, published_stream, published_seq, published_duplicate, generation, originals, stream,
  attempt_log, expires_at)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, coalesce(payload, 'null'), occurred_at,
       correlation_id, causation_id, published_at, publish_attempts, publish_error, seq, partition_key, topic,
       coalesce(headers, 'null'), available_at, dead_at, published_stream, published_seq, published_duplicate,
       generation, originals, stream, attempt_log, expires_at
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::outbox_events, line::json)
ON CONFLICT DO NOTHING
