-- How many events could be published now, counted up to the limit, and in which lanes. ORDER BY makes the planner
-- use the partial indexes. Without it, the planner might read a table full of published rows from its beginning.
-- The server says how long it took, because a busy process notices an answer late.
SELECT sum(count)::bigint AS count, bit_or(lanes) AS lanes,
       extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS seconds
FROM (SELECT count(*), bit_or(1::bigint << relay_lane_of_hash(hashtext(partition_key))) AS lanes
      FROM (SELECT partition_key
            FROM outbox_events
            WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
            ORDER BY relay_lane(partition_key), seq
            LIMIT %(limit)s) AS ready
      UNION ALL
      SELECT count(*), bit_or(1::bigint << relay_lane_of_hash(hashtext(partition_key)))
      FROM (SELECT partition_key
            FROM outbox_events
            WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
            ORDER BY available_at
            LIMIT %(limit)s) AS due) AS waiting
