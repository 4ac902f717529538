-- Sessions of the relay that wait for a lock, also for one on a table of the application, and who holds it: the longest
-- first. A prepared transaction has no process.
SELECT waiting.application_name, waiting.pid, extract(epoch FROM clock_timestamp() - waiting.state_change)::float8,
       blocker.pid, coalesce(nullif(holder.application_name, ''), 'a session'),
       extract(epoch FROM clock_timestamp() - holder.xact_start)::float8
FROM pg_stat_activity AS waiting
CROSS JOIN LATERAL (SELECT pid FROM unnest(pg_blocking_pids(waiting.pid)) AS pid LIMIT 1) AS blocker
LEFT JOIN pg_stat_activity AS holder ON holder.pid = blocker.pid
WHERE waiting.datname = current_database() AND starts_with(waiting.application_name, 'jetrelay-')
  AND waiting.wait_event_type = 'Lock' AND waiting.state_change < clock_timestamp() - %(longer)s::interval
ORDER BY waiting.state_change
LIMIT 5
