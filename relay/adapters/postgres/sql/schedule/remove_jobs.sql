-- Remove the jobs that the new leader does not schedule.
UPDATE scheduled_jobs SET removed_at = now(), requested_at = NULL WHERE removed_at IS NULL AND name <> ALL(%(names)s)
