-- Record tasks in the caller's transaction. A delay counts from now, by the clock of the database, which also ends
-- it.
INSERT INTO task_outbox (
    id, type, payload, queue, priority, available_at, concurrency_key, correlation_id, causation_id, metadata,
    originals)
SELECT id, type, payload::jsonb, queue, priority, coalesce(available_at, clock_timestamp() + delay),
       concurrency_key, correlation_id, causation_id, metadata::jsonb, originals::jsonb
FROM unnest(
    %(id)s::uuid[], %(type)s::text[], %(payload)s::text[], %(queue)s::text[], %(priority)s::int[],
    %(available_at)s::timestamptz[], %(delay)s::interval[], %(concurrency_key)s::text[],
    %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(metadata)s::text[], %(originals)s::text[])
    WITH ORDINALITY
    AS task (id, type, payload, queue, priority, available_at, delay, concurrency_key, correlation_id,
             causation_id, metadata, originals, position)
ORDER BY position
