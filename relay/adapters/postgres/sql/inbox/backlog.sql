-- QRY-051: how many messages are not processed; of these, how many wait, keep failing, are held, or ended as
-- dead letters.
-- Counted up to the limit, the oldest first. ORDER BY makes the planner use the partial indexes.
SELECT count(*) AS count,
       min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL AND next_attempt_at IS DISTINCT FROM 'infinity') AS waiting,
       greatest(0, extract(epoch FROM clock_timestamp() - (
           SELECT received_at
           FROM inbox_messages
           WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND next_attempt_at IS DISTINCT FROM 'infinity'
           ORDER BY received_at
           LIMIT 1)))::float8 AS waiting_age_seconds,
       count(*) FILTER (
           WHERE dead_lettered_at IS NULL AND attempts > 3 AND next_attempt_at IS DISTINCT FROM 'infinity') AS failed_attempts,
       (SELECT count(*)
        FROM (SELECT
              FROM inbox_messages
              WHERE dead_lettered_at IS NOT NULL AND processed_at IS NULL
              ORDER BY dead_lettered_at
              LIMIT %(limit)s) AS dead) AS dead,
       (SELECT count(*)
        FROM (SELECT
              FROM inbox_messages
              WHERE next_attempt_at = 'infinity' AND processed_at IS NULL
              ORDER BY subscription, received_at
              LIMIT %(limit)s) AS held) AS held
FROM (SELECT received_at, dead_lettered_at, attempts, next_attempt_at
      FROM inbox_messages
      WHERE processed_at IS NULL
      ORDER BY received_at
      LIMIT %(limit)s) AS oldest
