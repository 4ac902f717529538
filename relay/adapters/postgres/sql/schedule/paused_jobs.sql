-- Jobs that an operator has paused, the longest paused first.
SELECT name FROM scheduled_jobs WHERE paused_at IS NOT NULL AND removed_at IS NULL ORDER BY paused_at, name
