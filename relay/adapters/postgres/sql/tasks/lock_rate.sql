-- Lock the rate limit of a task type and return its state. The first task that asks creates the row.
INSERT INTO task_rates AS rate (type)
VALUES (%(type)s)
ON CONFLICT (type) DO UPDATE SET type = excluded.type
RETURNING free_at - clock_timestamp(), promised_until - clock_timestamp()
