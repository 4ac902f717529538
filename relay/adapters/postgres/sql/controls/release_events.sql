-- Let events of a type go on that were put off while it was paused. They go on holding back the later ones of their
-- keys until they are published.
UPDATE outbox_events
SET available_at = clock_timestamp()
WHERE id = ANY (ARRAY(
    SELECT id
    FROM outbox_events
    WHERE published_at IS NULL AND dead_at IS NULL AND publish_attempts > 0
      AND event_type = %(name)s AND publish_error LIKE 'EVENTS_PAUSED:%%' AND available_at > clock_timestamp()
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
