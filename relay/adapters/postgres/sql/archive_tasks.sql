-- Tasks that have had their time, the oldest first, locked until they are deleted. One that is retried has no end.
SELECT id, finished_at, row_to_json(t)::text
FROM task_outbox AS t
WHERE finished_at < now() - %(after)s::interval
  AND status IN ('completed', 'failed', 'cancelled')
ORDER BY finished_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
