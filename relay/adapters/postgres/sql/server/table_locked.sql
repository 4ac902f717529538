-- Whether a lock of another program is in the way: on a table, against its readers or writers, since its transaction
-- began so long ago; or a session of functions waits for one for so long. A statement that is cancelled does not say
-- which lock it waited for. What functions have locked does not count: the one that took too long may hold it.
SELECT 1 AS locked
FROM pg_locks AS lock
JOIN pg_class AS class ON class.oid = lock.relation
LEFT JOIN pg_stat_activity AS holder ON holder.pid = lock.pid
WHERE lock.locktype = 'relation' AND lock.granted AND class.relnamespace <> 'pg_catalog'::regnamespace
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND holder.application_name IS DISTINCT FROM current_setting('application_name')
  AND coalesce(holder.xact_start < clock_timestamp() - %(longer)s::interval, true)
UNION ALL
SELECT 1
FROM pg_stat_activity AS waiting
JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS above ON true
LEFT JOIN pg_stat_activity AS holder ON holder.pid = above
WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock' AND waiting.usename = current_user
  AND waiting.application_name = current_setting('application_name')
  AND waiting.state_change < clock_timestamp() - %(longer)s::interval
  AND holder.application_name IS DISTINCT FROM current_setting('application_name')
LIMIT 1
