-- Record events in the caller's transaction.
--
-- The locks come before the sequence numbers. A writer of a key waits here until the transaction that wrote the
-- key last is over. So within a key, seq order is commit order.
WITH event AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(aggregate_type)s::text[], %(aggregate_id)s::text[], %(event_type)s::text[],
        %(event_version)s::int[], %(payload)s::text[], %(occurred_at)s::timestamptz[],
        %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(partition_key)s::text[],
        %(topic)s::text[], %(headers)s::text[], %(available_at)s::timestamptz[], %(originals)s::text[],
        %(stream)s::text[])
        WITH ORDINALITY
        AS t (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
              correlation_id, causation_id, partition_key, topic, headers, available_at, originals, stream, position)
), lock AS MATERIALIZED (
    SELECT relay_lock_outbox(ARRAY(SELECT hashtext(partition_key) FROM event WHERE partition_key <> '')) AS taken
)
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
    correlation_id, causation_id, partition_key, topic, headers, available_at, originals, stream)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload::jsonb,
       coalesce(occurred_at, now()),
       correlation_id, causation_id, partition_key, topic, headers::jsonb, available_at, originals::jsonb, stream
FROM event, lock
WHERE lock.taken IS NOT NULL
ORDER BY position
