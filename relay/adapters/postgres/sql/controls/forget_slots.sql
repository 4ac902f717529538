-- The limit has changed: no slot is promised any more.
UPDATE task_rates SET free_at = clock_timestamp(), promised_until = clock_timestamp() WHERE type = %(type)s
