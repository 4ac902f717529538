-- How many sessions the relay has at the server, and how many there may be besides those kept for superusers.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'jetrelay-')) AS held,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true)::int, 0) AS room
