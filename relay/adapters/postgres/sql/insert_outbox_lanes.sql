-- Record events of hundreds of keys in the caller's transaction.
--
-- The locks come before the sequence numbers: whoever writes a key waits here until the transaction
-- that wrote it last is over, so seq order within a key is commit order. Sorted, to avoid deadlocks.
-- Whole lanes are locked instead of keys, so that the server's lock table never fills.
-- occurred_at: now() is the start of the transaction, which may be minutes ago, and the table admits
-- nothing later than a minute after it.
WITH event AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(aggregate_type)s::text[], %(aggregate_id)s::text[], %(event_type)s::text[],
        %(event_version)s::int[], %(payload)s::text[], %(occurred_at)s::timestamptz[],
        %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(partition_key)s::text[],
        %(topic)s::text[], %(headers)s::text[], %(available_at)s::timestamptz[])
        WITH ORDINALITY
        AS t (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
              correlation_id, causation_id, partition_key, topic, headers, available_at, position)
), lane AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(1785882989, number)
    FROM (SELECT DISTINCT hashtext(partition_key) & 63 AS number
          FROM event WHERE partition_key <> '' ORDER BY 1) AS sorted
), locked AS MATERIALIZED (
    SELECT (SELECT count(*) FROM lane) AS locks
)
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
    correlation_id, causation_id, partition_key, topic, headers, available_at)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload::jsonb,
       LEAST(occurred_at, now() + interval '1 minute'),
       correlation_id, causation_id, partition_key, topic, headers::jsonb, available_at
FROM event, locked
WHERE locked.locks >= 0
ORDER BY position
