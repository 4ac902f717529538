-- A batch keeps its rows locked. A process that pauses in it loses the locks after a minute, and its commit fails.
-- The time zone is fixed, so that the same row is always written the same way.
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL timezone = 'UTC'
