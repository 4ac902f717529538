-- How many events could be published now, counted no further than the limit. Asked for in the order of the
-- partial indexes: to find any, a table full of published rows might be read from its beginning.
SELECT (SELECT count(*) FROM (
           SELECT 1 FROM outbox_events
           WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
           ORDER BY CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END, seq
           LIMIT %(limit)s) AS ready)
     + (SELECT count(*) FROM (
           SELECT 1 FROM outbox_events
           WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
           ORDER BY available_at
           LIMIT %(limit)s) AS due)
