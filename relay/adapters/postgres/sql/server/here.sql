-- The server's clock, its process for this session, and how many client sessions it has, how many of them the relay
-- has, and how many it may have besides those that are kept for superusers. Our role may not see the kind of other roles' sessions.
SELECT clock_timestamp(), pg_backend_pid(),
       (SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'client backend' OR (backend_type IS NULL AND datname IS NOT NULL)),
       (SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'jetrelay-')),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true)::int, 0)
