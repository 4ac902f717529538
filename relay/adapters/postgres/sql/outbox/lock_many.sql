-- Lock events for an operator's action. This waits for a publisher that holds them.
SELECT id, published_at IS NOT NULL AND dead_at IS NULL,
       published_at IS NULL AND (dead_at IS NOT NULL OR publish_attempts > 0),
       published_at IS NOT NULL AND dead_at IS NOT NULL AND coalesce(expires_at > dead_at, true),
       published_at IS NOT NULL AND coalesce(expires_at <= dead_at, false),
       coalesce(expires_at <= clock_timestamp(), false)
FROM outbox_events
WHERE id = ANY (%(ids)s::uuid[])
ORDER BY seq
FOR UPDATE
