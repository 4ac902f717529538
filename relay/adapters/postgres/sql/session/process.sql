-- The server process of this transaction.
SELECT pg_backend_pid() AS pid
