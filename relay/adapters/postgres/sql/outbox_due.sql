-- How many events could be published now, counted no further than the limit, and in which lanes. Asked for in the
-- order of the partial indexes: to find any, a table full of published rows might be read from its beginning.
SELECT sum(count), bit_or(lanes)
FROM (SELECT count(*), bit_or(1::bigint << (hashtext(partition_key) & 63)) AS lanes
      FROM (SELECT partition_key
            FROM outbox_events
            WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
            ORDER BY CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END, seq
            LIMIT %(limit)s) AS ready
      UNION ALL
      SELECT count(*), bit_or(1::bigint << (hashtext(partition_key) & 63))
      FROM (SELECT partition_key
            FROM outbox_events
            WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
            ORDER BY available_at
            LIMIT %(limit)s) AS due) AS waiting
