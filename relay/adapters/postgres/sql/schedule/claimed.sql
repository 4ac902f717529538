-- Runs of cron jobs that go on now. Their worker is named in the row.
SELECT 'run' AS kind, correlation_id::text AS id, correlation_id::text AS row_id, job AS part, job AS name, attempts,
       claim_token, claimed_until, started_at, who
FROM scheduled_runs
WHERE state = 'started' AND claimed_until >= now()
LIMIT %(limit)s
