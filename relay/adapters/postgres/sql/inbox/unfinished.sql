-- Count the rows of a subscription that are neither processed nor dead, up to a limit. Parked messages do not
-- count: they wait for an operator, and others go on. ORDER BY makes the planner use the index.
SELECT count(*)
FROM (
    SELECT 1
    FROM inbox_messages
    WHERE processed_at IS NULL
      AND dead_lettered_at IS NULL
      AND enqueued_at IS DISTINCT FROM 'infinity'
      AND subscription = %(subscription)s
    ORDER BY enqueued_at
    LIMIT %(limit)s) AS unfinished
