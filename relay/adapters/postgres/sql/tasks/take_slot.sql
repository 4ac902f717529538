-- A task has started: the next one of its type may start after one interval.
UPDATE task_rates SET free_at = clock_timestamp() + %(interval)s WHERE type = %(type)s
