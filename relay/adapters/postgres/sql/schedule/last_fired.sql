-- The time since when a cron job may be due: its latest run, or when its present schedule was first recorded. A
-- paused job is left out, as if no scheduler ran for it.
SELECT job.name, greatest(job.registered_at, (SELECT max(scheduled_for) FROM scheduled_runs WHERE scheduled_runs.job = job.name))
FROM scheduled_jobs AS job
WHERE job.name = ANY(%(names)s) AND job.paused_at IS NULL
