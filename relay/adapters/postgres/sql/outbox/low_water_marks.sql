-- For each lane: the seq of its first ready event, if it is within the next step of decided sequence numbers;
-- otherwise the number after that step. Also: whether this is as far as possible, and how many seconds it has
-- taken so far.
SELECT held.number, coalesce(first.seq, greatest(held.mark, next.highest + 1)),
       first.seq IS NOT NULL OR next.highest >= %(decided)s::bigint,
       extract(epoch FROM clock_timestamp() - statement_timestamp())::float8
FROM unnest(%(lanes)s::int[], %(marks)s::bigint[]) AS held (number, mark)
CROSS JOIN LATERAL (SELECT least(%(decided)s::bigint, greatest(held.mark, 0) + %(step)s::bigint) AS highest) AS next
LEFT JOIN LATERAL (
    SELECT e.seq
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.dead_at IS NULL
      AND e.available_at IS NULL
      AND relay_lane(e.partition_key) = held.number
      AND e.seq BETWEEN held.mark AND next.highest
    ORDER BY e.seq
    LIMIT 1) AS first ON true
