-- The tasks that wait to run, and for how long they have been due. Each part reads its own index and counts up to
-- the limit, so the many finished tasks are not read.
SELECT count(*) FILTER (WHERE NOT failed AND due <= clock_timestamp()) AS count,
       coalesce(extract(epoch FROM
           clock_timestamp() - min(due) FILTER (WHERE NOT failed AND due <= clock_timestamp())), 0)::float8
           AS oldest_age_seconds,
       count(*) FILTER (WHERE NOT failed AND due > clock_timestamp()) AS delayed,
       count(*) FILTER (WHERE failed) AS failed
FROM (
    (SELECT created_at AS due, false AS failed
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NULL
     ORDER BY queue, priority, seq
     LIMIT %(limit)s)
    UNION ALL
    (SELECT greatest(created_at, available_at), false
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NOT NULL
     ORDER BY queue, available_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT greatest(created_at, available_at), false
     FROM task_outbox
     WHERE status = 'delivered'
     ORDER BY queue, enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT created_at, true
     FROM task_outbox
     WHERE status = 'failed'
     ORDER BY seq
     LIMIT %(limit)s)
) AS unfinished
