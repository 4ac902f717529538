-- What the new leader does not schedule is not scheduled any more.
UPDATE scheduled_jobs SET removed_at = now(), requested_at = NULL WHERE removed_at IS NULL AND name <> ALL(%(names)s)
