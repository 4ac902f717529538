-- Pause a job, or let it go on. A pause that holds keeps its time.
UPDATE scheduled_jobs
SET paused_at = CASE WHEN %(pause)s THEN coalesce(paused_at, clock_timestamp()) END
WHERE name = %(name)s AND removed_at IS NULL
