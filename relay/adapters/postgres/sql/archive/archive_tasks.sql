-- Tasks that are old enough for the archive, the oldest first. They stay locked until they are deleted. A task
-- that is retried has no finished_at.
SELECT id, finished_at, row_to_json(t)::text
FROM task_outbox AS t
WHERE finished_at < now() - %(after)s::interval
  AND status IN ('completed', 'failed', 'cancelled')
ORDER BY finished_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
