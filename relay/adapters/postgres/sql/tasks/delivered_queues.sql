-- The queues that should have brought a task to a worker by now. A few index look-ups for each queue.
WITH RECURSIVE delivered AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'delivered'
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'delivered' AND task.queue > delivered.queue)
    FROM delivered WHERE delivered.queue IS NOT NULL
)
SELECT queue FROM delivered
WHERE queue IS NOT NULL
  AND EXISTS (SELECT FROM task_outbox AS task
              WHERE task.status = 'delivered' AND task.queue = delivered.queue
                AND task.enqueued_at < now() - %(grace)s)
ORDER BY queue
