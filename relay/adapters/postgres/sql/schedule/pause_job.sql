-- Pause a job, or let it go on. A job that is paused already keeps the time of its pause.
UPDATE scheduled_jobs
SET paused_at = CASE WHEN %(pause)s THEN coalesce(paused_at, clock_timestamp()) END
WHERE name = %(name)s AND removed_at IS NULL
