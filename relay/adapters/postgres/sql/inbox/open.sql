-- Which of the subscriptions have unfinished messages. ORDER BY makes the planner use the index. Without it, the
-- planner might read a table full of finished rows from its beginning.
SELECT name
FROM unnest(%(subscriptions)s::text[]) AS name
WHERE (SELECT true
       FROM inbox_messages
       WHERE processed_at IS NULL
         AND dead_lettered_at IS NULL
         AND subscription = name
       ORDER BY enqueued_at
       LIMIT 1)
