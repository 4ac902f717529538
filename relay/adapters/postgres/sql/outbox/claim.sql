-- Claim due events of those of the lanes that outbox/lock_lanes has locked before in the transaction. Within a key,
-- events go in the order of their commits: a failed event keeps the later ones of its key waiting (relay_holds_back).
-- The last columns are the lane of the event, the quota, and how often events were reopened. The last one shows
-- whether an event was reopened since the low-water marks were found.
--
-- Each search follows the order of its index, so that the planner does not choose one that reads far more. OFFSET
-- 0 keeps a subquery from being merged into the rest.
--
-- Events that this process could not settle lately are left out: they would take the places of others.
--
-- Usually no event has failed. Then failed events are not searched.
WITH held AS MATERIALIZED (
    SELECT lane, mark
    FROM unnest(%(lanes)s::int[] || -1, %(marks)s::bigint[]) AS asked (lane, mark)
    WHERE lane = -1
       OR lane = ANY (coalesce(nullif(current_setting('relay.held_lanes', true), '')::int[], %(lanes)s::int[]))
),
failed AS MATERIALIZED (
    SELECT EXISTS (
        SELECT
        FROM outbox_events
        WHERE published_at IS NULL AND publish_attempts > 0
        ORDER BY hashtext(partition_key), seq
        OFFSET 0) AS some
),
-- The held lanes with ready events, and the first of each. While an old snapshot is open, the index keeps entries
-- of published events before it. They are read once, here, from the mark on. Lane -1 has the events without a key.
-- No publisher holds it; SKIP LOCKED divides its events between publishers.
ready_lane AS MATERIALIZED (
    SELECT held.lane, first.seq AS first_seq
    FROM held, LATERAL (
        SELECT e.seq
        FROM outbox_events AS e
        WHERE e.published_at IS NULL AND e.dead_at IS NULL AND e.available_at IS NULL
          AND relay_lane(e.partition_key) = held.lane
          AND e.seq >= held.mark
        ORDER BY e.seq
        LIMIT 1) AS first
),
-- The lowest and the highest hash have no neighbour.
hash_limit AS (
    SELECT -9223372036854775808 AS lowest, 9223372036854775807 AS highest
),
-- The oldest failed events of each lane, by the hash of their key. A million events may wait behind one, and a
-- claim must not read them. Younger failed events, and those with the lowest or highest hash, are checked event by
-- event in ``ready``.
failed_head AS MATERIALIZED (
    SELECT lane, first_seq, hash, min(seq) AS seq
    FROM hash_limit, ready_lane, (VALUES (0), (1)) AS dead (flag), LATERAL (
        SELECT hashtextextended(e.partition_key, 0) AS hash, e.seq
        FROM outbox_events AS e
        WHERE e.published_at IS NULL AND e.publish_attempts > 0
          AND CASE WHEN e.dead_at IS NULL THEN 0 ELSE 1 END = dead.flag
          AND relay_lane(e.partition_key) = ready_lane.lane
          AND relay_holds_back(e.generation, e.dead_at, 0, %(dead_head_blocks)s)
        ORDER BY e.seq
        LIMIT 8) AS oldest
    WHERE (SELECT failed.some FROM failed)
      AND (dead.flag = 0 OR %(dead_head_blocks)s)
      AND lane >= 0
      AND hash NOT IN (lowest, highest)
    GROUP BY lane, first_seq, hash
),
-- What a claim may take of a lane, as ranges that the index compares: the keys between the hashes of failed heads;
-- of such a hash, what comes before the head, and the head, which is ready if an operator has reset it by hand.
-- The last range of a lane is the rest after its last head: NULL comes last. The lane that has waited longest
-- comes first, because the batch may fill up.
key_range AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY first_seq) AS id, part.*
    FROM (
        SELECT lane, first_seq,
               coalesce(lag(hash) OVER (PARTITION BY lane ORDER BY hash) + 1, lowest) AS low,
               coalesce(hash - 1, highest) AS high,
               highest AS end_seq
        FROM hash_limit, (
            SELECT lane, first_seq, hash FROM failed_head
            UNION ALL
            SELECT lane, first_seq, NULL FROM ready_lane) AS next
        UNION ALL
        SELECT lane, first_seq, hash, hash, seq + 1 FROM failed_head) AS part
),
-- Each range may fill only its part of the batch. So a claim reads no more than it takes.
quota AS MATERIALIZED (
    SELECT ceil(%(limit)s::int / greatest(1, count(*))::float8)::int AS rows FROM key_range
),
-- Events that are not delayed and never failed, without those behind a failed event that the ranges do not know.
ready AS (
    SELECT key_range.id AS range_id, e.*
    FROM key_range, LATERAL (
        SELECT e.*
        FROM outbox_events AS e
        WHERE e.published_at IS NULL AND e.dead_at IS NULL AND e.available_at IS NULL
          AND relay_lane(e.partition_key) = key_range.lane
          AND e.seq >= key_range.first_seq AND e.seq < key_range.end_seq
          AND hashtextextended(e.partition_key, 0) BETWEEN key_range.low AND key_range.high
          AND e.id NOT IN (SELECT unnest(%(apart)s::uuid[]))
          AND (key_range.lane = -1 OR NOT (SELECT failed.some FROM failed) OR NOT EXISTS (
              SELECT FROM relay_is_held_back(e.partition_key, e.seq, e.generation, %(dead_head_blocks)s)))
        ORDER BY e.seq
        LIMIT (SELECT quota.rows FROM quota)
        FOR UPDATE SKIP LOCKED) AS e
    LIMIT %(limit)s
),
-- Events whose back-off or delay is over.
due AS (
    SELECT NULL::bigint AS range_id, e.*
    FROM outbox_events AS e
    WHERE e.published_at IS NULL AND e.dead_at IS NULL AND e.available_at <= now()
      AND relay_lane(e.partition_key) = ANY (ARRAY(SELECT lane FROM held))
      AND e.id NOT IN (SELECT unnest(%(apart)s::uuid[]))
      AND (e.partition_key = '' OR NOT EXISTS (
          SELECT FROM relay_is_held_back(e.partition_key, e.seq, e.generation, %(dead_head_blocks)s)))
    ORDER BY e.available_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
claimed AS NOT MATERIALIZED (
    SELECT * FROM ready UNION ALL SELECT * FROM due
),
-- Ready events that another session has locked, for example an operator's. They hold back their keys too.
skipped AS (
    SELECT e.partition_key, min(e.seq) AS seq
    FROM (SELECT range_id AS id, max(seq) AS last_seq FROM ready GROUP BY range_id) AS taken
    JOIN key_range USING (id), LATERAL (
        SELECT e.id, e.partition_key, e.seq
        FROM outbox_events AS e
        WHERE e.published_at IS NULL AND e.dead_at IS NULL AND e.available_at IS NULL
          AND relay_lane(e.partition_key) = key_range.lane
          AND e.seq BETWEEN key_range.first_seq AND taken.last_seq
          AND hashtextextended(e.partition_key, 0) BETWEEN key_range.low AND key_range.high
        ORDER BY e.seq
        OFFSET 0) AS e
    WHERE key_range.lane >= 0
      AND e.seq NOT IN (SELECT seq FROM ready)
      AND e.id NOT IN (SELECT unnest(%(apart)s::uuid[]))
      AND e.partition_key IN (SELECT partition_key FROM claimed)
    GROUP BY e.partition_key
)
-- Only small events that are stored uncompressed are shown. The size of any other is not known before it is
-- unpacked: outbox/large fetches as many of those as a claim may hold. A number of twelve bytes may have a hundred
-- thousand digits. So after a quarter of a second nothing is unpacked here.
SELECT id::text, shown.event_type, event_version, shown.payload,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, shown.partition_key, shown.topic, shown.headers,
       publish_attempts, generation, shown.originals, shown.stream, seq,
       to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), relay_lane(claimed.partition_key),
       (SELECT quota.rows FROM quota), (SELECT last_value + is_called::int FROM relay_reopened)
FROM claimed LEFT JOIN LATERAL (
    SELECT claimed.event_type, claimed.partition_key, claimed.topic, claimed.stream, claimed.headers::text AS headers,
           claimed.originals::text AS originals, claimed.payload::text AS payload
    WHERE pg_column_compression(claimed.payload) IS NULL
      AND pg_column_compression(claimed.headers) IS NULL
      AND pg_column_compression(claimed.originals) IS NULL
      AND pg_column_size(claimed.payload) + pg_column_size(claimed.headers) + octet_length(claimed.event_type)
          + octet_length(claimed.partition_key) + coalesce(octet_length(claimed.topic), 0)
          + coalesce(octet_length(claimed.stream), 0) + coalesce(pg_column_size(claimed.originals), 0) <= 2000
      AND clock_timestamp() < statement_timestamp() + interval '250 milliseconds'
    OFFSET 0) AS shown ON octet_length(shown.payload) <= 20000 AND octet_length(shown.headers) <= 20000
                          AND coalesce(octet_length(shown.originals), 0) <= 20000
WHERE NOT EXISTS (
    SELECT FROM skipped WHERE skipped.partition_key = claimed.partition_key AND skipped.seq < claimed.seq)
ORDER BY seq
