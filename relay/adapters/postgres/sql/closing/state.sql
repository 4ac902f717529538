-- Whether the tables are closed; what was noted when they were; and which database and function this is. A copy has the
-- note of its original, and is another one.
SELECT EXISTS (
           SELECT FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass AND tgname = 'relay_closed') AS closed,
       obj_description(refuse.oid, 'pg_proc') AS note,
       server.system_identifier || '/' || here.oid || '/' || coalesce(refuse.oid, 0) AS identity
FROM pg_control_system() AS server, pg_database AS here
LEFT JOIN pg_proc AS refuse
    ON refuse.proname = 'relay_refuse_closed' AND refuse.pronamespace = current_schema()::regnamespace
WHERE here.datname = current_database()
