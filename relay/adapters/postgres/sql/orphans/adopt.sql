-- Write events of a stream as published rows, in the order of the stream. The locks of their keys come first, as for new
-- events. A row of the same id, or of the same text as its id, stays as it is.
WITH event AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(aggregate_type)s::text[], %(aggregate_id)s::text[], %(event_type)s::text[],
        %(event_version)s::int[], %(payload)s::text[], %(occurred_at)s::timestamptz[],
        %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(partition_key)s::text[],
        %(topic)s::text[], %(headers)s::text[], %(originals)s::text[], %(stream)s::text[],
        %(part)s::text[], %(published_at)s::timestamptz[], %(published_seq)s::bigint[], %(generation)s::int[])
        WITH ORDINALITY
        AS t (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
              correlation_id, causation_id, partition_key, topic, headers, originals, stream,
              part, published_at, published_seq, generation, position)
), lock AS MATERIALIZED (
    SELECT relay_lock_outbox(ARRAY(SELECT hashtext(partition_key) FROM event WHERE partition_key <> '')) AS taken
)
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
    correlation_id, causation_id, partition_key, topic, headers, originals, stream,
    published_at, publish_attempts, published_stream, published_seq, published_duplicate, generation)
SELECT id, aggregate_type, aggregate_id, event_type, event_version,
       CASE part WHEN '' THEN payload::jsonb ELSE payload::jsonb -> part END, occurred_at,
       correlation_id, causation_id, partition_key, topic, headers::jsonb, originals::jsonb, stream,
       published_at, 1, %(published_stream)s, published_seq, false, generation
FROM event, lock
WHERE lock.taken IS NOT NULL
ORDER BY position
ON CONFLICT DO NOTHING
RETURNING id
