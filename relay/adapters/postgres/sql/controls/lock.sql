-- One control, also one that has ended, locked for a change; whether it is in force; and the time of the database.
SELECT until, concurrency, "interval", per_key, former_concurrency, former_interval, former_per_key,
       until IS NULL OR until > clock_timestamp()
FROM controls
WHERE what = %(what)s AND name = %(name)s AND act = %(act)s
FOR UPDATE
