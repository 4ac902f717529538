-- The oldest transactions that use our tables, or that an index build waits for.
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::int
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND xact_start IS NOT NULL
  AND (backend_xmin IS NOT NULL OR pid IN (
      SELECT held.pid
      FROM pg_locks AS held
      JOIN pg_class ON pg_class.oid = held.relation
      WHERE held.granted AND relnamespace = current_schema()::regnamespace AND relkind = 'r'))
ORDER BY xact_start
LIMIT 3
