-- Stop a replay that runs. Its worker sees it with its next step.
UPDATE inbox_replays
SET state = 'stopped', ended_at = clock_timestamp()
WHERE id = %(id)s AND state = 'running'
RETURNING id
