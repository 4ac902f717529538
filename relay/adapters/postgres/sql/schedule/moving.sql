-- Runs of cron jobs that should have begun, for each job that is not paused: opened and not claimed, lost by their
-- worker, or not even opened at their time. While a run of the job goes on, the next one waits for it.
SELECT job.name AS part, 1 AS due, extract(epoch FROM clock_timestamp() - waits.since)::float8 AS due_seconds,
       waits.head, NULL::float8 AS moved_seconds, false AS overtaken
FROM scheduled_jobs AS job, LATERAL (
    SELECT min(since) AS since, min(head) AS head
    FROM (
        SELECT coalesce(greatest(run.opened_at, run.available_at, run.claimed_until), run.opened_at) AS since,
               run.scheduled_for::text AS head
        FROM scheduled_runs AS run
        WHERE run.job = job.name
          AND (run.state = 'waiting' AND coalesce(run.available_at, run.opened_at) <= clock_timestamp()
               OR run.state = 'started' AND run.claimed_until <= clock_timestamp())
        UNION ALL
        SELECT job.next_run_at, job.next_run_at::text
        WHERE job.next_run_at <= clock_timestamp()) AS open) AS waits
WHERE job.removed_at IS NULL AND job.paused_at IS NULL AND job.schedule NOT LIKE 'every %%'
  AND waits.since IS NOT NULL
  AND NOT EXISTS (
      SELECT FROM scheduled_runs AS run
      WHERE run.job = job.name AND run.state = 'started' AND run.claimed_until > clock_timestamp())
