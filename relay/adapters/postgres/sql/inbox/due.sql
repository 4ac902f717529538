-- Count the rows of a subscription that could be handled now or are being handled, up to a limit. A row that waits
-- for its next attempt has an enqueued_at in the future. ORDER BY makes the planner use the index. Without it, the
-- planner might read a table full of finished rows from its beginning.
SELECT count(*)
FROM (
    SELECT 1
    FROM inbox_messages
    WHERE processed_at IS NULL
      AND dead_lettered_at IS NULL
      AND enqueued_at <= now()
      AND subscription = %(subscription)s
    ORDER BY enqueued_at
    LIMIT %(limit)s) AS due
