-- QRY-050: how many events are not published; of these, how many wait, how many are delayed until their time, and how
-- many are dead until an operator acts. Counted up to the limit, the oldest first. A delayed event waits from its time
-- on; one that has failed is not delayed. ORDER BY makes the planner use the partial indexes.
SELECT count(*) AS count,
       min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE dead_at IS NULL AND NOT delayed) AS waiting,
       greatest(0, extract(epoch FROM clock_timestamp() - (
           SELECT min(since)
           FROM ((SELECT occurred_at AS since
                  FROM outbox_events
                  WHERE published_at IS NULL AND dead_at IS NULL AND (available_at IS NULL OR publish_attempts > 0)
                  ORDER BY occurred_at
                  LIMIT 1)
                 UNION ALL
                 (SELECT greatest(occurred_at, available_at)
                  FROM outbox_events
                  WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
                  ORDER BY available_at
                  LIMIT 1)) AS first)))::float8 AS waiting_age_seconds,
       (SELECT count(*)
        FROM (SELECT
              FROM outbox_events
              WHERE dead_at IS NOT NULL AND published_at IS NULL
              ORDER BY dead_at
              LIMIT %(limit)s) AS dead) AS dead,
       (SELECT count(*)
        FROM (SELECT
              FROM outbox_events
              WHERE published_at IS NULL AND dead_at IS NULL AND available_at > now() AND publish_attempts = 0
              ORDER BY available_at
              LIMIT %(limit)s) AS later) AS delayed
FROM (SELECT occurred_at, dead_at, coalesce(available_at > now(), false) AND publish_attempts = 0 AS delayed
      FROM outbox_events
      WHERE published_at IS NULL
      ORDER BY occurred_at
      LIMIT %(limit)s) AS oldest
