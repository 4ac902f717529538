-- The last runs of a job, or of each cron job: the newest first.
SELECT job.name AS job, run.scheduled_for, run.state, run.opened_at, run.started_at, run.finished_at, run.attempts,
       run.error, run.who, run.correlation_id::text
FROM scheduled_jobs AS job, LATERAL (
    SELECT *
    FROM scheduled_runs
    WHERE scheduled_runs.job = job.name
    ORDER BY scheduled_for DESC
    LIMIT %(limit)s) AS run
WHERE job.name = %(job)s
ORDER BY run.scheduled_for DESC
