-- A task was promised the turn after all those promised before.
UPDATE task_rates SET promised_until = clock_timestamp() + %(delay)s WHERE type = %(type)s
