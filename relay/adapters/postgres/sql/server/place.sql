-- Which server and which tables a connection leads to. A pooler and the server behind it give the same answer.
SELECT pg_postmaster_start_time(), current_database(), to_regclass('outbox_events')::oid
