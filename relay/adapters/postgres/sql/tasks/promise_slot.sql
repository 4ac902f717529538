-- Promise a task the slot after all slots that were promised before.
UPDATE task_rates SET promised_until = clock_timestamp() + %(delay)s WHERE type = %(type)s
