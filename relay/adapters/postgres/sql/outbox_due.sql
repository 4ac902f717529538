-- How many events could be published now, counted no further than the limit. Reads the partial indexes.
SELECT (SELECT count(*) FROM (
           SELECT 1 FROM outbox_events
           WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
           LIMIT %(limit)s) AS ready)
     + (SELECT count(*) FROM (
           SELECT 1 FROM outbox_events
           WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
           LIMIT %(limit)s) AS due)
