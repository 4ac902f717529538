-- How many events could be published now, counted up to the limit, and for how long the oldest of those counted
-- could have been. What waits behind a failed event of its key does not count: no worker could publish it. ORDER BY
-- makes the planner use the partial indexes. Without it, the planner might read a table full of published rows from
-- its beginning.
WITH held_back AS MATERIALIZED (
    SELECT hashtext(partition_key) AS hash
    FROM outbox_events
    WHERE published_at IS NULL AND publish_attempts > 0 AND partition_key <> ''
      AND relay_holds_back(generation, dead_at, 0, %(dead_head_blocks)s)
    ORDER BY hashtext(partition_key), seq
    LIMIT %(limit)s)
SELECT least(%(limit)s, count(*)) AS count,
       greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0))::float8 AS age_seconds
FROM (
    SELECT since
    FROM (SELECT partition_key, occurred_at AS since
          FROM outbox_events
          WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
          ORDER BY relay_lane(partition_key), seq
          LIMIT %(limit)s) AS ready
    WHERE hashtext(partition_key) NOT IN (SELECT hash FROM held_back)
    UNION ALL
    (SELECT available_at
     FROM outbox_events
     WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
     ORDER BY available_at
     LIMIT %(limit)s)) AS due
