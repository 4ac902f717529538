-- The transactions that may have given out places in the outbox and are not over. Whoever inserts takes this lock
-- before, and keeps it until the commit can be seen. A reader has another one, however old.
SELECT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation = 'outbox_events'::regclass
  AND mode = 'RowExclusiveLock'
