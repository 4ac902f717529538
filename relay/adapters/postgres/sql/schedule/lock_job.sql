-- Lock a job for an operator's decision.
SELECT schedule, paused_at IS NOT NULL AS paused
FROM scheduled_jobs
WHERE name = %(name)s AND removed_at IS NULL
FOR UPDATE
