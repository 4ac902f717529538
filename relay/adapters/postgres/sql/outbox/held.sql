-- About how many events the table holds. The server's statistics say so: counting would read the whole table.
-- Statistics in memory are newer, and lost in a crash.
SELECT coalesce(nullif(pg_stat_get_live_tuples(oid), 0), greatest(reltuples, 0)::bigint) AS events
FROM pg_class
WHERE oid = 'outbox_events'::regclass
