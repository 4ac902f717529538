-- QRY-050: what waits to be published, and what is dead until an operator looks at it.
SELECT count(*) FILTER (WHERE dead_at IS NULL) AS count,
       min(occurred_at) FILTER (WHERE dead_at IS NULL) AS oldest_at,
       greatest(0, extract(epoch FROM
           clock_timestamp() - min(occurred_at) FILTER (WHERE dead_at IS NULL)))::float8 AS oldest_age_seconds,
       count(*) FILTER (WHERE dead_at IS NOT NULL) AS dead
FROM outbox_events
WHERE published_at IS NULL
