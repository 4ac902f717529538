-- Tables of ours: the rows that the last ANALYZE estimates (null: there was none), and bytes with indexes.
SELECT relname::text, nullif(reltuples, -1)::bigint, pg_total_relation_size(oid)
FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname = ANY (%(tables)s::text[])
