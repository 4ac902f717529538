-- As tasks/insert, for tasks of which one expires. How long it may be run counts from when it is due.
INSERT INTO task_outbox (
    id, type, payload, queue, priority, available_at, concurrency_key, correlation_id, causation_id, metadata,
    originals, expires_at)
SELECT id, type, payload::jsonb, queue, priority, coalesce(available_at, clock_timestamp() + delay),
       concurrency_key, correlation_id, causation_id, metadata::jsonb, originals::jsonb,
       coalesce(expires_at, coalesce(available_at, clock_timestamp() + coalesce(delay, '0')) + expires_in)
FROM unnest(
    %(id)s::uuid[], %(type)s::text[], %(payload)s::text[], %(queue)s::text[], %(priority)s::int[],
    %(available_at)s::timestamptz[], %(delay)s::interval[], %(concurrency_key)s::text[],
    %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(metadata)s::text[], %(originals)s::text[],
    %(expires_at)s::timestamptz[], %(expires_in)s::interval[])
    WITH ORDINALITY
    AS task (id, type, payload, queue, priority, available_at, delay, concurrency_key, correlation_id,
             causation_id, metadata, originals, expires_at, expires_in, position)
ORDER BY position
