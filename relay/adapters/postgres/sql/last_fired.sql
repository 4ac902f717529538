-- Since when a cron job may be due: its latest run, or when it was first scheduled as it is now.
SELECT job.name, greatest(job.registered_at, (SELECT max(scheduled_for) FROM scheduled_runs WHERE scheduled_runs.job = job.name))
FROM scheduled_jobs AS job
WHERE job.name = ANY(%(names)s)
