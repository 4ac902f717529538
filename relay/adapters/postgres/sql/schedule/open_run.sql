-- Open a run, once for each time, and only for the leader. The lease is locked: a leader that paused in between
-- cannot add a run if its successor has already opened a later one.
INSERT INTO scheduled_runs (job, scheduled_for, correlation_id, state)
SELECT %(job)s, %(scheduled_for)s, %(correlation_id)s,
       CASE
         WHEN %(missed)s THEN 'missed'
         WHEN EXISTS (SELECT FROM scheduled_runs WHERE job = %(job)s AND state = 'waiting') THEN 'skipped'
         ELSE 'waiting'
       END
FROM (SELECT FROM scheduler_lease WHERE holder = %(holder)s AND expires_at > clock_timestamp() FOR SHARE) AS lead
WHERE NOT EXISTS (SELECT FROM scheduled_runs WHERE job = %(job)s AND scheduled_for >= %(scheduled_for)s)
ON CONFLICT DO NOTHING
RETURNING state
