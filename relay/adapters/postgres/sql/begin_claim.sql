-- Open the claim transaction. The transaction is the lease: a process that is paused in it loses its
-- locks after five seconds and its commit fails.
BEGIN;
SET LOCAL idle_in_transaction_session_timeout = '5s';
SET LOCAL statement_timeout = '5s'
