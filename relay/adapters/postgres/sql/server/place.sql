-- Which tables a connection sees, and of which server: the same for a pooler and for the server behind it.
SELECT pg_postmaster_start_time(), current_database(), to_regclass('outbox_events')::oid
