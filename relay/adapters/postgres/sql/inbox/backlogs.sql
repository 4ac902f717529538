-- What waits to be handled, by subscription, for the metrics; counted up to the limit. It steps through the index
-- from subscription to subscription, so it costs a few reads for each, however many messages wait. Held messages are
-- counted apart. They come last by enqueued_at.
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
SELECT known.name AS subscription, count(*) FILTER (WHERE NOT held) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE NOT held)))::float8
           AS oldest_age_seconds,
       count(*) FILTER (WHERE attempts > 3 AND NOT held) AS failed_attempts,
       count(next_attempt_at) FILTER (WHERE failed AND NOT held) AS failing, count(let_go_at) FILTER (WHERE NOT held) AS let_go,
       (SELECT count(*)
        FROM (SELECT
              FROM inbox_messages
              WHERE next_attempt_at = 'infinity' AND processed_at IS NULL AND subscription = known.name
              ORDER BY received_at
              LIMIT %(limit)s) AS apart) AS held
FROM known, LATERAL (
    SELECT received_at, attempts, next_attempt_at, let_go_at, next_attempt_at IS NOT DISTINCT FROM 'infinity' AS held,
           last_error IS NOT NULL AS failed
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = known.name
    ORDER BY enqueued_at
    LIMIT %(limit)s) AS waiting
GROUP BY known.name
UNION ALL
SELECT NULL, count(*) FILTER (WHERE NOT held),
       greatest(0, extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE NOT held)))::float8,
       count(*) FILTER (WHERE attempts > 3 AND NOT held), count(next_attempt_at) FILTER (WHERE failed AND NOT held),
       count(let_go_at) FILTER (WHERE NOT held), count(*) FILTER (WHERE held)
FROM (SELECT received_at, attempts, next_attempt_at, let_go_at, next_attempt_at IS NOT DISTINCT FROM 'infinity' AS held,
           last_error IS NOT NULL AS failed
      FROM inbox_messages
      WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription IS NULL
      ORDER BY enqueued_at
      LIMIT %(limit)s) AS of_nobody
HAVING count(*) > 0
