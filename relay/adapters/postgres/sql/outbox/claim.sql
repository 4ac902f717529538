-- Claim due events of the held lanes. Within a key, events go in the order of their commits.
--
-- lane: the held lanes in which something is ready. Each may give its share of the batch, so a claim reads only
-- what it takes. Lane -1 has the events without a key (partition_key = ''), which belong to no lane; SKIP LOCKED
-- divides them between publishers. The lane that has waited longest comes first, because the batch may fill up.
-- since: the first ready event of the lane. The index entries before it belong to published events. The claim
-- walks through them once, from the floor on. PostgreSQL cannot remove them while an old snapshot is open.
-- The last column tells whether an event was reopened since the floors were found.
-- head: the failed events that hold back keys of these lanes, the oldest of each lane.
-- span: the part of a lane that a claim may take. These are the key hashes between those of the heads. For the
-- hash of a head, it is the events before the head and the head itself, which is ready if an operator has reset it
-- by hand. The index compares this, so a claim skips even a million events behind a head without reading them.
-- Younger heads, and the lowest and highest possible hash, are checked event by event.
-- ready: events that are not delayed and never failed. due: events whose back-off or delay is over. An event waits
-- while an earlier one of its key has failed and is not published. A dead one counts only under dead_head =
-- 'block'. One that was published before and is replayed counts only for other replays.
-- skipped: rows that somebody else has locked, for example an operator. They hold back their keys too.
-- shown: events that are small and stored uncompressed. For all others only the id is returned, because their size
-- is not known before they are unpacked. outbox/large fetches as many of those as a claim may hold.
-- Each search follows the order of its index, so that the planner does not choose one that reads far more.
-- OFFSET 0 keeps a subquery, for example the one per lane in skipped, from being merged into the rest.
WITH failed AS MATERIALIZED (
    SELECT count(*) > 0 AS some
    FROM (SELECT
          FROM outbox_events
          WHERE published_at IS NULL AND publish_attempts > 0
          ORDER BY hashtext(partition_key), seq
          LIMIT 1) AS first
), lane AS MATERIALIZED (
    SELECT held.number, first.seq AS since
    FROM unnest(%(lanes)s::int[] || -1, %(floors)s::bigint[]) AS held (number, floor), LATERAL (
        SELECT e.seq
        FROM outbox_events AS e
        WHERE e.published_at IS NULL
          AND e.dead_at IS NULL
          AND e.available_at IS NULL
          AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = held.number
          AND e.seq >= held.floor
        ORDER BY e.seq
        LIMIT 1) AS first
), bound AS (
    SELECT -9223372036854775808 AS lowest, 9223372036854775807 AS highest
), head AS MATERIALIZED (
    SELECT lane.number, lane.since, oldest.hash, min(oldest.seq) AS seq
    FROM bound, lane, LATERAL (
        (SELECT hashtextextended(e.partition_key, 0) AS hash, e.seq
         FROM outbox_events AS e
         WHERE e.published_at IS NULL
           AND e.publish_attempts > 0
           AND e.generation = 0
           AND CASE WHEN e.dead_at IS NULL THEN 0 ELSE 1 END = 0
           AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = lane.number
         ORDER BY e.seq
         LIMIT 8)
        UNION ALL
        (SELECT hashtextextended(e.partition_key, 0) AS hash, e.seq
         FROM outbox_events AS e
         WHERE e.published_at IS NULL
           AND e.publish_attempts > 0
           AND e.generation = 0
           AND CASE WHEN e.dead_at IS NULL THEN 0 ELSE 1 END = 1
           AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = lane.number
           AND %(dead_head_blocks)s
         ORDER BY e.seq
         LIMIT 8)) AS oldest
    WHERE (SELECT failed.some FROM failed)
      AND lane.number >= 0
      AND oldest.hash NOT IN (bound.lowest, bound.highest)
    GROUP BY lane.number, lane.since, oldest.hash
), span AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY since) AS id, part.*
    FROM (
        SELECT number, since, lowest AS low, highest AS high, highest AS before
        FROM lane, bound
        WHERE number NOT IN (SELECT head.number FROM head)
        UNION ALL
        SELECT number, since,
               coalesce(lag(hash) OVER (PARTITION BY number ORDER BY hash) + 1, lowest), hash - 1, highest
        FROM head, bound
        UNION ALL
        SELECT number, since, max(hash) + 1, highest, highest
        FROM head, bound
        GROUP BY number, since, highest
        UNION ALL
        SELECT number, since, hash, hash, seq + 1
        FROM head) AS part
), share AS MATERIALIZED (
    SELECT ceil(%(limit)s::int / GREATEST(1, count(*))::float8)::int AS rows FROM span
), ready AS (
    SELECT span.number, span.id AS span, e.*
    FROM span, LATERAL (
        SELECT e.*
        FROM outbox_events AS e
        WHERE e.published_at IS NULL
          AND e.dead_at IS NULL
          AND e.available_at IS NULL
          AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = span.number
          AND e.seq >= span.since
          AND e.seq < span.before
          AND hashtextextended(e.partition_key, 0) BETWEEN span.low AND span.high
          AND (span.number = -1 OR NOT (SELECT failed.some FROM failed) OR NOT EXISTS (
              SELECT 1
              FROM outbox_events AS earlier
              WHERE hashtext(earlier.partition_key) = hashtext(e.partition_key)
                AND earlier.partition_key = e.partition_key
                AND earlier.seq < e.seq
                AND earlier.published_at IS NULL
                AND earlier.publish_attempts > 0
                AND (earlier.generation = 0 OR e.generation > 0)
                AND (earlier.dead_at IS NULL OR %(dead_head_blocks)s)
              ORDER BY hashtext(earlier.partition_key), earlier.seq
              OFFSET 0))
        ORDER BY e.seq
        LIMIT (SELECT share.rows FROM share)
        FOR UPDATE SKIP LOCKED) AS e
    LIMIT %(limit)s
), due AS (
    SELECT e.*
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.dead_at IS NULL
      AND e.available_at <= now()
      AND (e.partition_key = '' OR (hashtext(e.partition_key) & 63) = ANY (%(lanes)s::int[]))
      AND (e.partition_key = '' OR NOT EXISTS (
          SELECT 1
          FROM outbox_events AS earlier
          WHERE hashtext(earlier.partition_key) = hashtext(e.partition_key)
            AND earlier.partition_key = e.partition_key
            AND earlier.seq < e.seq
            AND earlier.published_at IS NULL
            AND earlier.publish_attempts > 0
            AND (earlier.generation = 0 OR e.generation > 0)
            AND (earlier.dead_at IS NULL OR %(dead_head_blocks)s)
          ORDER BY hashtext(earlier.partition_key), earlier.seq
          OFFSET 0))
    ORDER BY e.available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), skipped AS (
    SELECT e.partition_key, min(e.seq) AS seq
    FROM (SELECT ready.span, max(ready.seq) AS seq FROM ready WHERE ready.number >= 0 GROUP BY ready.span) AS last
    JOIN span ON span.id = last.span, LATERAL (
        SELECT e.partition_key, e.seq
        FROM outbox_events AS e
        WHERE e.published_at IS NULL
          AND e.dead_at IS NULL
          AND e.available_at IS NULL
          AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = span.number
          AND e.seq BETWEEN span.since AND last.seq
          AND hashtextextended(e.partition_key, 0) BETWEEN span.low AND span.high
        ORDER BY e.seq
        OFFSET 0) AS e
    WHERE e.seq NOT IN (SELECT seq FROM ready)
      AND e.partition_key IN (SELECT partition_key FROM ready UNION ALL SELECT partition_key FROM due)
    GROUP BY e.partition_key
), claimed AS (
    SELECT seq, id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
           partition_key, topic, headers, publish_attempts, generation, number
    FROM ready
    UNION ALL
    SELECT seq, id, event_type, event_version, payload, occurred_at, correlation_id, causation_id,
           partition_key, topic, headers, publish_attempts, generation,
           CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END
    FROM due
)
SELECT id::text, shown.event_type, event_version, shown.payload,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, shown.partition_key, shown.topic, shown.headers,
       publish_attempts, generation, number, (SELECT share.rows FROM share),
       (SELECT last_value + is_called::int FROM relay_reopened)
FROM claimed LEFT JOIN LATERAL (
    SELECT claimed.event_type, claimed.partition_key, claimed.topic, claimed.headers::text AS headers,
           claimed.payload::text AS payload
    WHERE pg_column_compression(claimed.payload) IS NULL
      AND pg_column_compression(claimed.headers) IS NULL
      AND pg_column_size(claimed.payload) + pg_column_size(claimed.headers) + octet_length(claimed.event_type)
          + octet_length(claimed.partition_key) + coalesce(octet_length(claimed.topic), 0) <= 2000
    OFFSET 0) AS shown ON octet_length(shown.payload) <= 20000
WHERE NOT EXISTS (
    SELECT 1 FROM skipped WHERE skipped.partition_key = claimed.partition_key AND skipped.seq < claimed.seq)
ORDER BY seq
