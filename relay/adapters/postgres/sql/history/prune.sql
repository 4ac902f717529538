-- Delete what is older than its step is kept.
DELETE FROM history
WHERE (step = 'minute' AND at < %(at)s - %(minutes)s::interval) OR (step = 'hour' AND at < %(at)s - %(hours)s::interval)
