-- The events of the keys of adopted ones, from the first adopted one of each key on, in the order of the stream: if
-- some were there before, all get new numbers in this order. Open events come last. Those that occurred before the
-- adopted one keep their place.
WITH adopted AS MATERIALIZED (
    SELECT partition_key, min(published_seq) AS place, min(occurred_at) AS occurred_at
    FROM outbox_events
    WHERE id = ANY (%(ids)s::uuid[]) AND partition_key <> ''
    GROUP BY partition_key
), later AS MATERIALIZED (
    SELECT e.id, e.partition_key, e.published_seq, e.seq
    FROM outbox_events AS e JOIN adopted USING (partition_key)
    WHERE e.published_stream = %(stream)s
      AND e.published_seq >= (SELECT min(place) FROM adopted)
      AND e.published_seq >= adopted.place
    UNION
    SELECT e.id, e.partition_key, NULL, e.seq
    FROM outbox_events AS e JOIN adopted USING (partition_key)
    WHERE e.published_at IS NULL AND e.published_seq IS NULL AND e.occurred_at >= adopted.occurred_at
)
SELECT id
FROM later
WHERE partition_key IN (SELECT partition_key FROM later WHERE id <> ALL (%(ids)s::uuid[]))
ORDER BY published_seq NULLS LAST, seq
