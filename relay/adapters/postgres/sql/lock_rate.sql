-- Hold a type's rate limit, and say where it stands. Its row is made by the first task that asks.
INSERT INTO task_rates AS rate (type)
VALUES (%(type)s)
ON CONFLICT (type) DO UPDATE SET type = excluded.type
RETURNING free_at - clock_timestamp(), promised_until - clock_timestamp()
