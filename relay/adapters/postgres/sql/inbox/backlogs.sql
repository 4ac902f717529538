-- What waits to be handled, by subscription, for the metrics; counted up to the limit. It steps through the index
-- from subscription to subscription, so it costs a few reads for each, however many messages wait.
WITH RECURSIVE known AS (
    SELECT min(subscription) AS name
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL
    UNION ALL
    SELECT (SELECT min(subscription)
            FROM inbox_messages
            WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription > known.name)
    FROM known
    WHERE known.name IS NOT NULL
)
SELECT known.name AS subscription, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(received_at)))::float8 AS oldest_age_seconds,
       count(*) FILTER (WHERE attempts > 3) AS failed_attempts,
       count(next_attempt_at) AS failing, count(let_go_at) AS let_go
FROM known, LATERAL (
    SELECT received_at, attempts, next_attempt_at, let_go_at
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = known.name
    ORDER BY enqueued_at
    LIMIT %(limit)s) AS waiting
GROUP BY known.name
UNION ALL
SELECT NULL, count(*),
       greatest(0, extract(epoch FROM clock_timestamp() - min(received_at)))::float8,
       count(*) FILTER (WHERE attempts > 3), count(next_attempt_at), count(let_go_at)
FROM (SELECT received_at, attempts, next_attempt_at, let_go_at
      FROM inbox_messages
      WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription IS NULL
      ORDER BY enqueued_at
      LIMIT %(limit)s) AS of_nobody
HAVING count(*) > 0
