-- The last runs of a cron job, the newest first.
SELECT job, scheduled_for, state, opened_at, started_at, finished_at, attempts, error, who, correlation_id::text
FROM scheduled_runs
WHERE job = %(job)s
ORDER BY scheduled_for DESC
LIMIT %(limit)s
