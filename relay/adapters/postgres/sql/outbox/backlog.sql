-- QRY-050: how many events are not published; of these, how many wait, how many are delayed until their time, and how
-- many are dead until an operator acts. Counted up to the limit, the oldest first. A delayed event waits from its time
-- on; one that has failed is not delayed. ORDER BY makes the planner use the partial indexes. However many are delayed,
-- the oldest that waits is found: among the oldest of all, as the first of its lane, or as the first that became due.
-- Delayed ones are counted from the last on, because failed ones among them are due soon.
WITH oldest AS MATERIALIZED (
    SELECT occurred_at, dead_at, available_at, publish_attempts > 0 AS failed,
           coalesce(available_at > now(), false) AND publish_attempts = 0 AS delayed
    FROM outbox_events
    WHERE published_at IS NULL
    ORDER BY occurred_at
    LIMIT %(limit)s
)
SELECT count(*) AS count,
       min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE dead_at IS NULL AND NOT delayed) AS waiting,
       greatest(0, extract(epoch FROM clock_timestamp() - (
           SELECT min(since)
           FROM (SELECT CASE WHEN failed THEN occurred_at ELSE greatest(occurred_at, available_at) END AS since
                 FROM oldest
                 WHERE dead_at IS NULL AND NOT delayed
                 UNION ALL
                 SELECT first.occurred_at
                 FROM generate_series(-1, 63) AS lane, LATERAL (
                     SELECT occurred_at
                     FROM outbox_events
                     WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
                       AND relay_lane(partition_key) = lane
                     ORDER BY seq
                     LIMIT 1) AS first
                 UNION ALL
                 (SELECT greatest(occurred_at, available_at)
                  FROM outbox_events
                  WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
                  ORDER BY available_at
                  LIMIT 1)) AS waits)))::float8 AS waiting_age_seconds,
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
              ORDER BY available_at DESC
              LIMIT %(limit)s) AS later) AS delayed
FROM oldest
