-- How many tasks could run now or are running, counted up to the limit, and for how long the oldest of those counted
-- could have been. A task that was put off, by a failure or by a limit, does not count before its time.
SELECT least(%(limit)s, count(*)) AS count,
       greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0))::float8 AS age_seconds
FROM (
    (SELECT created_at AS since
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NULL
     ORDER BY queue, priority, seq
     LIMIT %(limit)s)
    UNION ALL
    (SELECT greatest(created_at, available_at)
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NOT NULL AND available_at <= now()
     ORDER BY queue, available_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT greatest(created_at, available_at, next_attempt_at)
     FROM task_outbox
     WHERE status = 'delivered' AND (next_attempt_at IS NULL OR next_attempt_at <= now())
     ORDER BY queue, enqueued_at
     LIMIT %(limit)s)) AS due
