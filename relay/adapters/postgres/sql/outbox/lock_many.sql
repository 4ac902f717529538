-- Lock events for an operator's action. This waits for a publisher that holds them.
SELECT id, published_at IS NOT NULL, dead_at IS NOT NULL OR publish_attempts > 0
FROM outbox_events
WHERE id = ANY (%(ids)s::uuid[])
ORDER BY seq
FOR UPDATE
