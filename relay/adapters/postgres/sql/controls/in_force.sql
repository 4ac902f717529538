-- The pauses and limits in force, by the database's clock. A few rows at most.
SELECT what, name, act, until, concurrency, "interval", per_key, former_concurrency, former_interval,
       former_per_key, reason, by, since
FROM controls
WHERE until IS NULL OR until > clock_timestamp()
ORDER BY what, name, act
