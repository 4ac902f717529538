-- The relay's tables as autovacuum sees them: row versions that are used and dead, and whether it may clean up.
SELECT c.relname::text, greatest(c.reltuples, 0)::bigint, coalesce(s.n_dead_tup, 0),
       NOT coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions),
                    false)
FROM pg_class AS c LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname = ANY (%(tables)s::text[])
