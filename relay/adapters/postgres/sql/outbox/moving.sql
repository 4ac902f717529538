-- How publishing moves, for each lane in which an event is due: the first due event, for how long it has been due,
-- how long ago the lane was last published, and whether a later event of the lane was published before it. ``moved``:
-- the same for the whole outbox. Of ready events of a lane only the first ones are looked at, and of published ones
-- only the last; for a lane that is not among them, because others are much busier, ten times as many of the last
-- %(bound)s. Lane -1 has the events without a key: publishers share them, so a later one may be a batch ahead.
WITH last AS MATERIALIZED (
    SELECT relay_lane(partition_key) AS lane, seq, published_at
    FROM outbox_events
    WHERE published_at IS NOT NULL AND published_at <= clock_timestamp()
    ORDER BY published_at DESC
    LIMIT %(looked)s
), longer AS MATERIALIZED (
    SELECT relay_lane(partition_key) AS part, max(published_at) AS at
    FROM (
        SELECT partition_key, published_at
        FROM outbox_events
        WHERE published_at IS NOT NULL
          AND published_at > now() - %(bound)s::interval AND published_at <= clock_timestamp()
        ORDER BY published_at DESC
        LIMIT 10 * %(looked)s) AS recent
    GROUP BY 1
), waiting AS (
    SELECT lanes.lane, ready.*
    FROM generate_series(-1, 63) AS lanes (lane), LATERAL (
        SELECT first.id, first.seq, greatest(first.occurred_at, timestamptz '2000-01-01') AS since
        FROM (
            SELECT id, seq, occurred_at, partition_key, generation
            FROM outbox_events
            WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
              AND relay_lane(partition_key) = lanes.lane
            ORDER BY seq
            LIMIT %(counted)s) AS first
        WHERE first.partition_key = '' OR NOT EXISTS (
            SELECT FROM relay_is_held_back(
                first.partition_key, first.seq, first.generation, %(dead_head_blocks)s))
        ORDER BY first.seq
        LIMIT 1) AS ready
    UNION ALL
    SELECT relay_lane(put_off.partition_key), put_off.id, NULL,
           greatest(put_off.occurred_at, put_off.available_at, timestamptz '2000-01-01')
    FROM (
        SELECT id, seq, occurred_at, available_at, partition_key, generation
        FROM outbox_events
        WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= clock_timestamp()
        ORDER BY available_at
        LIMIT %(counted)s) AS put_off
    WHERE put_off.partition_key = '' OR NOT EXISTS (
        SELECT FROM relay_is_held_back(
            put_off.partition_key, put_off.seq, put_off.generation, %(dead_head_blocks)s))
), first AS (
    SELECT DISTINCT ON (lane) lane, id, seq, since, count(*) OVER (PARTITION BY lane) AS due
    FROM waiting
    ORDER BY lane, since
)
SELECT first.lane, first.due, extract(epoch FROM clock_timestamp() - first.since)::float8 AS due_seconds,
       first.id::text AS head,
       extract(epoch FROM clock_timestamp() - coalesce(own.at, CASE
           WHEN first.since < clock_timestamp() - %(bound)s::interval THEN (
               SELECT longer.at FROM longer WHERE longer.part = first.lane) END))::float8 AS lane_moved_seconds,
       coalesce(own.seq > first.seq, false) AS overtaken,
       extract(epoch FROM clock_timestamp() - (SELECT max(published_at) FROM last))::float8 AS moved_seconds
FROM first LEFT JOIN (
    SELECT lane, max(published_at) AS at,
           max(seq) FILTER (WHERE lane >= 0 OR published_at < clock_timestamp() - interval '10 seconds') AS seq
    FROM last
    GROUP BY lane) AS own USING (lane)
