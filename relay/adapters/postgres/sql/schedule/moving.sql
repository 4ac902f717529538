-- Runs of cron jobs that should have begun, for each job that is not paused: opened and not claimed, lost by their
-- worker, or not even opened at their time. While a run of the job goes on, the next one waits for it. All jobs share
-- the workers. So an opened run may wait while others go on, unless one that was opened more than %(bound)s later was
-- begun before it. Of begun runs only the last ones are looked at.
WITH last AS MATERIALIZED (
    SELECT max(opened_at) AS opened_at,
           max(CASE WHEN state = 'started' AND claimed_until > clock_timestamp() THEN clock_timestamp()
                    ELSE greatest(started_at, finished_at) END) AS at
    FROM (
        SELECT opened_at, state, claimed_until, started_at, finished_at
        FROM scheduled_runs
        WHERE started_at IS NOT NULL
        ORDER BY opened_at DESC
        LIMIT %(looked)s) AS begun
)
SELECT job.name AS part, 1 AS due, extract(epoch FROM clock_timestamp() - waits.since)::float8 AS due_seconds,
       waits.head,
       CASE WHEN waits.opened THEN extract(epoch FROM clock_timestamp() - last.at)::float8 END AS moved_seconds,
       waits.opened AND coalesce(last.opened_at - %(bound)s::interval > waits.since, false) AS overtaken
FROM scheduled_jobs AS job, last, LATERAL (
    SELECT min(since) AS since, min(head) AS head, bool_and(opened) AS opened
    FROM (
        SELECT coalesce(greatest(run.opened_at, run.available_at, run.claimed_until), run.opened_at) AS since,
               run.scheduled_for::text AS head, true AS opened
        FROM scheduled_runs AS run
        WHERE run.job = job.name
          AND (run.state = 'waiting' AND coalesce(run.available_at, run.opened_at) <= clock_timestamp()
               OR run.state = 'started' AND run.claimed_until <= clock_timestamp())
        UNION ALL
        SELECT job.next_run_at, job.next_run_at::text, false
        WHERE job.next_run_at <= clock_timestamp()) AS open) AS waits
WHERE job.removed_at IS NULL AND job.paused_at IS NULL AND job.schedule NOT LIKE 'every %%'
  AND waits.since IS NOT NULL
  AND NOT EXISTS (
      SELECT FROM scheduled_runs AS run
      WHERE run.job = job.name AND run.state = 'started' AND run.claimed_until > clock_timestamp())
