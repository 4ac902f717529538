-- For each type of tasks: how many wait to run, for how long the oldest has been due, and how many have failed for
-- good. As tasks/backlog, each part reads its own index and counts up to the limit.
SELECT type, count(*) FILTER (WHERE NOT failed) AS waiting,
       coalesce(extract(epoch FROM clock_timestamp() - min(due) FILTER (WHERE NOT failed)), 0)::float8 AS oldest_seconds,
       count(*) FILTER (WHERE failed) AS dead
FROM (
    (SELECT type, created_at AS due, false AS failed
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NULL
     ORDER BY queue, priority, seq
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, greatest(created_at, available_at), false
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NOT NULL
     ORDER BY queue, available_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, greatest(created_at, available_at), false
     FROM task_outbox
     WHERE status = 'delivered'
     ORDER BY queue, enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, created_at, true
     FROM task_outbox
     WHERE status = 'failed'
     ORDER BY seq
     LIMIT %(limit)s)
) AS unfinished
WHERE failed OR due <= clock_timestamp()
GROUP BY type
