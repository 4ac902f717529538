-- Count the rows of a subscription that could be handled now or are being handled, up to a limit of each kind. A row
-- that waits for its next attempt has an enqueued_at in the future. In an ordered subscription a message that waits
-- for its turn has none. It counts too, so a blocked key stops fetching in the end. Parked messages do not count.
-- ORDER BY makes the planner use the index. Without it, the planner might read a table full of finished rows from
-- its beginning.
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
