-- End the transaction of a function that outlived its time-out: others need the rows that it has locked.
SELECT pg_terminate_backend(%(pid)s)
