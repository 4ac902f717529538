-- How many events wait to be published, counted up to the limit; for how long the first of them has waited; and
-- the state of the brake. Events that their producer has delayed for longer than "soon" do not count.
--
-- Only events that a publisher could take have an age: a failed event, and the events behind it, are no sign of
-- pressure. Only the thousand events that wait longest are checked.
SELECT (SELECT count(*)
        FROM (SELECT
              FROM outbox_events
              WHERE published_at IS NULL AND dead_at IS NULL
                AND (available_at IS NULL OR available_at <= now() + %(soon)s)
              ORDER BY occurred_at
              LIMIT %(limit)s) AS waiting) AS waiting,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(occurred_at)), 0)::float8
        FROM (SELECT occurred_at, available_at, partition_key, seq, generation
              FROM outbox_events
              WHERE published_at IS NULL AND dead_at IS NULL
              ORDER BY occurred_at
              LIMIT 1000) AS oldest
        WHERE available_at IS NULL AND NOT EXISTS (
            SELECT
            FROM outbox_events AS earlier
            WHERE hashtext(earlier.partition_key) = hashtext(oldest.partition_key)
              AND earlier.partition_key = oldest.partition_key AND earlier.partition_key <> ''
              AND earlier.seq < oldest.seq
              AND earlier.published_at IS NULL AND earlier.publish_attempts > 0
              AND relay_holds_back(earlier.generation, earlier.dead_at, oldest.generation, %(dead_head_blocks)s)
            ORDER BY hashtext(earlier.partition_key), earlier.seq
            OFFSET 0)) AS seconds,
       brake AS action,
       brake_delay AS delay,
       coalesce(extract(epoch FROM brake_until - clock_timestamp()), 0)::float8 AS remaining
FROM relay_wakeup
