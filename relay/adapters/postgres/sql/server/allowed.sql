-- How many sessions this role may have in this database, how many sessions the server has room for besides those
-- that are there, and how many of these are the relay's. A limit of the role or of the database counts where it is
-- lower. Superusers have no such limits.
SELECT least(server.room, CASE WHEN NOT me.rolsuper AND me.rolconnlimit >= 0 THEN me.rolconnlimit END,
             CASE WHEN NOT me.rolsuper AND here.datconnlimit >= 0 THEN here.datconnlimit END)::int,
       (server.room - (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database))::int,
       (SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'jetrelay-'))::int
FROM (SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
             - coalesce(current_setting('reserved_connections', true)::int, 0) AS room) AS server,
     pg_roles AS me, pg_database AS here
WHERE me.rolname = current_user AND here.datname = current_database()
