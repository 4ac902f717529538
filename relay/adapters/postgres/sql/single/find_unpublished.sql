-- The first events that are not published. One row at a time, for scripts: a claim is outbox/claim.
SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
       published_at, publish_attempts, publish_error
FROM outbox_events
WHERE published_at IS NULL AND dead_at IS NULL
ORDER BY seq
LIMIT %(limit)s
