-- Record what is scheduled and when it ran. A job that comes back within an hour counts as never removed: two
-- releases may take turns.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO scheduled_jobs AS job (name, schedule, last_run_at, next_run_at, error)
SELECT told.*
FROM relaxed, unnest(
  %(names)s::text[], %(schedules)s::text[], %(lasts)s::timestamptz[], %(nexts)s::timestamptz[], %(errors)s::text[]
) AS told
ON CONFLICT (name) DO UPDATE
SET schedule = EXCLUDED.schedule,
    last_run_at = coalesce(EXCLUDED.last_run_at, job.last_run_at),
    next_run_at = EXCLUDED.next_run_at,
    error = CASE WHEN EXCLUDED.last_run_at IS NULL THEN job.error ELSE EXCLUDED.error END,
    registered_at = CASE
      WHEN job.schedule = EXCLUDED.schedule AND coalesce(job.removed_at, now()) > now() - interval '1 hour'
      THEN job.registered_at ELSE now()
    END,
    removed_at = NULL
