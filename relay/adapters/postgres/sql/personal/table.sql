-- How many pages a table has, and the types of its columns. No row if there is no such table.
SELECT pg_relation_size(c.oid) / current_setting('block_size')::int,
       (SELECT jsonb_object_agg(a.attname, format_type(a.atttypid, NULL))
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class AS c
WHERE c.oid = to_regclass(%(table)s)
