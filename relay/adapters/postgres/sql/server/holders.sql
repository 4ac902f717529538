-- Sessions that hold locks which publishing or handling needs, the longest transaction first: lanes of the outbox, and
-- rows or whole tables of ours. Sessions of the relay itself that are at work are not among them.
SELECT DISTINCT ON (activity.xact_start, held.pid)
       held.pid, coalesce(nullif(activity.application_name, ''), 'a session') AS name,
       extract(epoch FROM clock_timestamp() - activity.xact_start)::float8 AS seconds, held.what
FROM (
    SELECT pid, 'lanes of the outbox' AS what
    FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = relay_publisher_locks()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT pid, 'rows or all of ' || relation::regclass::text
    FROM pg_locks
    WHERE locktype = 'relation' AND granted AND mode <> 'AccessShareLock'
      AND relation = ANY (ARRAY['outbox_events', 'inbox_messages', 'task_outbox']::regclass[])
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS held
JOIN pg_stat_activity AS activity USING (pid)
WHERE activity.xact_start < clock_timestamp() - %(bound)s::interval
ORDER BY activity.xact_start, held.pid
LIMIT 3
