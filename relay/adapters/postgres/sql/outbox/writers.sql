-- Transactions that are open and may have taken sequence numbers of the outbox. An INSERT takes this lock before
-- it takes a number, and keeps it until its commit is visible. Readers, however old, hold another lock.
SELECT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation = 'outbox_events'::regclass
  AND mode = 'RowExclusiveLock'
