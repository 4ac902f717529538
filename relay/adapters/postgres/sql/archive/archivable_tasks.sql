-- How many rows archive/archive_tasks would find in all.
SELECT count(*), min(finished_at), max(finished_at)
FROM task_outbox
WHERE finished_at < now() - %(after)s::interval
  AND status IN ('completed', 'failed', 'cancelled')
