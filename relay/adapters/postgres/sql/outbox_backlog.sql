-- QRY-050: what is not published, and how much of it waits to be, or is dead until an operator looks at it.
SELECT count(*) AS count,
       min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE dead_at IS NULL) AS waiting,
       greatest(0, extract(epoch FROM
           clock_timestamp() - min(occurred_at) FILTER (WHERE dead_at IS NULL)))::float8 AS waiting_age_seconds,
       count(*) FILTER (WHERE dead_at IS NOT NULL) AS dead
FROM outbox_events
WHERE published_at IS NULL
