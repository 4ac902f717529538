-- The queues for which a task is due. It steps through the indexes from queue to queue, so it costs a few reads
-- however many tasks wait.
WITH RECURSIVE ready AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'pending' AND available_at IS NULL
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'pending' AND task.available_at IS NULL AND task.queue > ready.queue)
    FROM ready WHERE ready.queue IS NOT NULL
), delayed AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'pending' AND available_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'pending' AND task.available_at IS NOT NULL AND task.queue > delayed.queue)
    FROM delayed WHERE delayed.queue IS NOT NULL
)
SELECT queue FROM ready WHERE queue IS NOT NULL
UNION
SELECT queue FROM delayed
WHERE queue IS NOT NULL
  AND EXISTS (SELECT FROM task_outbox AS task
              WHERE task.status = 'pending' AND task.available_at IS NOT NULL AND task.queue = delayed.queue
                AND task.available_at <= now())
ORDER BY queue
