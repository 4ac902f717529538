-- Delete old runs. The latest run of a job stays, because it says when the job last fired.
DELETE FROM scheduled_runs
WHERE id IN (
  SELECT id FROM scheduled_runs AS old
  WHERE opened_at < now() - %(keep)s AND state NOT IN ('waiting', 'started')
    AND EXISTS (SELECT FROM scheduled_runs WHERE job = old.job AND scheduled_for > old.scheduled_for)
  LIMIT %(limit)s
)
