-- For how long the most overdue event has waited. Back-off counts as waiting; a requested delay does not, until
-- the event fails.
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(due)), 0)::float8 AS seconds
FROM (
    SELECT CASE WHEN publish_attempts > 0 THEN occurred_at ELSE greatest(occurred_at, available_at) END AS due
    FROM outbox_events
    WHERE published_at IS NULL AND dead_at IS NULL
) AS waiting
WHERE due <= clock_timestamp()
