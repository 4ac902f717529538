-- Runs of cron jobs by their correlations.
SELECT id, job, scheduled_for, state, opened_at, started_at, finished_at, attempts, error, correlation_id
FROM scheduled_runs
WHERE correlation_id = ANY (%(correlations)s::uuid[])
ORDER BY opened_at
LIMIT %(limit)s
