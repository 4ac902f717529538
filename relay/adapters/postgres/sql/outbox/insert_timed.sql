-- As outbox/insert, for events of which one has a time: it expires, or it is due after a delay from now on. How long it
-- may be published counts from when it is due.
WITH event AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(id)s::uuid[], %(aggregate_type)s::text[], %(aggregate_id)s::text[], %(event_type)s::text[],
        %(event_version)s::int[], %(payload)s::text[], %(occurred_at)s::timestamptz[],
        %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(partition_key)s::text[],
        %(topic)s::text[], %(headers)s::text[], %(available_at)s::timestamptz[], %(originals)s::text[],
        %(stream)s::text[], %(delay)s::interval[], %(expires_at)s::timestamptz[], %(expires_in)s::interval[])
        WITH ORDINALITY
        AS t (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
              correlation_id, causation_id, partition_key, topic, headers, available_at, originals, stream,
              delay, expires_at, expires_in, position)
), lock AS MATERIALIZED (
    SELECT relay_lock_outbox(ARRAY(SELECT hashtext(partition_key) FROM event WHERE partition_key <> '')) AS taken
)
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at,
    correlation_id, causation_id, partition_key, topic, headers, available_at, originals, stream,
    expires_at)
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload::jsonb,
       coalesce(occurred_at, now()),
       correlation_id, causation_id, partition_key, topic, headers::jsonb,
       coalesce(available_at, now() + delay), originals::jsonb, stream,
       coalesce(expires_at, greatest(coalesce(occurred_at, now()), available_at, now() + delay) + expires_in)
FROM event, lock
WHERE lock.taken IS NOT NULL
ORDER BY position
