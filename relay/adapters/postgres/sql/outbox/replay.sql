-- Publish published events again, under the next generation. So the stream does not drop them as duplicates, and
-- consumers still recognise the id. The ledger keeps the last copy until the new one is acknowledged.
--
-- available_at lets new events go beside them instead of behind them. It differs by a microsecond for each, so
-- that they are claimed in their order. num_nulls replaces IS NOT NULL so that no index serves it: if statistics
-- say that few rows are published, the planner would begin with all of them.
UPDATE outbox_events AS e
SET generation = e.generation + 1,
    published_at = NULL,
    publish_attempts = 0,
    publish_error = NULL,
    available_at = clock.now + replay.place * interval '1 microsecond'
FROM (SELECT id, row_number() OVER (ORDER BY seq) AS place
      FROM outbox_events
      WHERE id = ANY (%(ids)s::uuid[])) AS replay,
     (SELECT clock_timestamp() AS now) AS clock
WHERE e.id = replay.id
  AND num_nulls(e.published_at) = 0
