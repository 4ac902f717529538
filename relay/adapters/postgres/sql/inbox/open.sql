-- Whether a subscription has unfinished messages. ORDER BY makes the planner use the index. Without it, the
-- planner might read a table full of finished rows from its beginning.
SELECT 1
FROM inbox_messages
WHERE processed_at IS NULL
  AND dead_lettered_at IS NULL
  AND subscription = %(subscription)s
ORDER BY enqueued_at
LIMIT 1
