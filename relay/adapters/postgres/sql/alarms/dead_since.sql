-- For how long events have been dead, and tasks failed: those that were first and still wait for an operator.
SELECT (SELECT extract(epoch FROM clock_timestamp() - min(dead_at))::float8
        FROM outbox_events
        WHERE dead_at IS NOT NULL AND published_at IS NULL) AS events,
       (SELECT extract(epoch FROM clock_timestamp() - min(finished_at))::float8
        FROM (SELECT finished_at FROM task_outbox WHERE status = 'failed' ORDER BY seq LIMIT %(counted)s) AS failed)
           AS tasks
