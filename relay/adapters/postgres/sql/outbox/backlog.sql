-- QRY-050: how many events are not published; of these, how many wait and how many are dead until an operator
-- acts. Counted up to the limit, the oldest first. ORDER BY makes the planner use the partial indexes.
SELECT count(*) AS count,
       min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE dead_at IS NULL) AS waiting,
       greatest(0, extract(epoch FROM clock_timestamp() - (
           SELECT occurred_at
           FROM outbox_events
           WHERE published_at IS NULL AND dead_at IS NULL
           ORDER BY occurred_at
           LIMIT 1)))::float8 AS waiting_age_seconds,
       (SELECT count(*)
        FROM (SELECT
              FROM outbox_events
              WHERE dead_at IS NOT NULL AND published_at IS NULL
              ORDER BY dead_at
              LIMIT %(limit)s) AS dead) AS dead
FROM (SELECT occurred_at, dead_at
      FROM outbox_events
      WHERE published_at IS NULL
      ORDER BY occurred_at
      LIMIT %(limit)s) AS oldest
