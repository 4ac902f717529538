-- The run that answers what was due, or asked for, at a time: the first since then. One that was skipped, because the
-- run before it had not started yet, is answered by that run.
SELECT job, scheduled_for, state, opened_at, started_at, finished_at, attempts, error, who, correlation_id::text
FROM scheduled_runs
WHERE job = %(job)s
  AND state <> 'skipped'
  AND scheduled_for <= (
    SELECT min(scheduled_for) FROM scheduled_runs WHERE job = %(job)s AND scheduled_for >= %(asked)s)
ORDER BY scheduled_for DESC
LIMIT 1
