-- A batch holds its rows locked: a process that is paused in one loses them after a minute and its commit fails.
-- One time zone, so that the same row is always written the same way.
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL timezone = 'UTC'
