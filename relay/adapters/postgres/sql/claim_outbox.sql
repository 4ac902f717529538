-- Claim due events of the held lanes, in the order of their keys' commits.
--
-- ready: never failed, not delayed. due: back-off or delay is over. An event waits while an earlier
-- one of its key has failed and is not published (a dead one counts only under dead_head = 'block';
-- one that was published before and is replayed counts only for other replays).
-- Unordered events (partition_key = '') belong to no lane; SKIP LOCKED shares them out.
-- skipped: a row that somebody else has locked, an operator at work on it say, holds its key back too.
WITH ready AS (
    SELECT e.*
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.dead_at IS NULL
      AND e.available_at IS NULL
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
            AND (earlier.dead_at IS NULL OR %(dead_head_blocks)s)))
    ORDER BY e.seq
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
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
            AND (earlier.dead_at IS NULL OR %(dead_head_blocks)s)))
    ORDER BY e.available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), skipped AS (
    SELECT e.partition_key, min(e.seq) AS seq
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.dead_at IS NULL
      AND e.available_at IS NULL
      AND e.partition_key <> ''
      AND e.seq <= (SELECT max(seq) FROM ready)
      AND e.seq NOT IN (SELECT seq FROM ready)
      AND (hashtext(e.partition_key) & 63) = ANY (%(lanes)s::int[])
    GROUP BY e.partition_key
)
SELECT seq, id::text, aggregate_type, aggregate_id, event_type, event_version, payload::text,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, partition_key, topic, headers::text,
       publish_attempts, generation
FROM (SELECT * FROM ready UNION ALL SELECT * FROM due) AS claimed
WHERE NOT EXISTS (
    SELECT 1 FROM skipped WHERE skipped.partition_key = claimed.partition_key AND skipped.seq < claimed.seq)
ORDER BY seq
