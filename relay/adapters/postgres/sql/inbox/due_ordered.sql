-- As inbox/due, for an ordered subscription. Messages that wait for their turn count too, so a blocked key stops
-- fetching in the end. Parked messages do not count.
SELECT count(*)
FROM (
    (SELECT 1
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at <= now()
       AND subscription = %(subscription)s
     ORDER BY enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT 1
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at IS NULL
       AND subscription = %(subscription)s
     ORDER BY enqueued_at
     LIMIT %(limit)s)) AS due
