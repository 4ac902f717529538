-- The first ready event of each lane, if it is one of those up to the place that is decided; else the place after.
SELECT held.number, coalesce(first.seq, %(decided)s::bigint + 1)
FROM unnest(%(lanes)s::int[], %(floors)s::bigint[]) AS held (number, floor)
LEFT JOIN LATERAL (
    SELECT e.seq
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.dead_at IS NULL
      AND e.available_at IS NULL
      AND CASE WHEN e.partition_key = '' THEN -1 ELSE hashtext(e.partition_key) & 63 END = held.number
      AND e.seq BETWEEN held.floor AND %(decided)s
    ORDER BY e.seq
    LIMIT 1) AS first ON true
