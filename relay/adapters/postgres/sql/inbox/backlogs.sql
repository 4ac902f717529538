-- What waits to be handled, by subscription, for the metrics.
SELECT subscription, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(received_at)))::float8 AS oldest_age_seconds,
       count(*) FILTER (WHERE attempts > 3) AS failed_attempts
FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL
GROUP BY subscription
