-- Everything that is scheduled. For cron jobs, with the last run.
SELECT job.name,
       job.schedule,
       coalesce(run.started_at, run.scheduled_for, job.last_run_at) AS last_run_at,
       run.state AS outcome,
       CASE WHEN run.state IS NULL THEN job.error ELSE run.error END AS error,
       CASE WHEN job.paused_at IS NULL THEN job.next_run_at END AS next_run_at,
       job.requested_at,
       job.paused_at
FROM scheduled_jobs AS job
LEFT JOIN LATERAL (
  SELECT state, scheduled_for, started_at, error
  FROM scheduled_runs WHERE scheduled_runs.job = job.name ORDER BY scheduled_for DESC LIMIT 1
) AS run ON true
WHERE job.removed_at IS NULL
ORDER BY job.name
LIMIT %(limit)s OFFSET %(offset)s
