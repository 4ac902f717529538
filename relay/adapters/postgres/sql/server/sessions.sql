-- Sessions whose transaction is open and does nothing, the longest first. A role without pg_read_all_stats does
-- not see the state of other roles' sessions: the last column counts these.
SELECT coalesce(nullif(application_name, ''), 'a session'), pid, extract(epoch FROM now() - state_change)::float8,
       0::bigint
FROM (SELECT application_name, pid, state_change FROM pg_stat_activity
      WHERE state LIKE 'idle in transaction%%' AND datname = current_database()
        AND state_change < now() - %(longer)s::interval
      ORDER BY state_change LIMIT 5) AS idle
UNION ALL
SELECT '', 0, 0, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type IS NULL
