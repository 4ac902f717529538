-- Sessions whose transaction is open and does nothing, the longest first. Of sessions of other roles a role without
-- pg_read_all_stats sees no state: the last column counts them.
SELECT coalesce(nullif(application_name, ''), 'a session'), pid, extract(epoch FROM now() - state_change)::float8,
       0::bigint
FROM (SELECT application_name, pid, state_change FROM pg_stat_activity
      WHERE state LIKE 'idle in transaction%%' AND datname = current_database()
        AND state_change < now() - %(longer)s::interval
      ORDER BY state_change LIMIT 5) AS idle
UNION ALL
SELECT '', 0, 0, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type IS NULL
