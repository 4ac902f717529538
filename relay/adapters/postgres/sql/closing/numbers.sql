-- How far the sequences of these tables have come, and these sequences. An application may have others beside them.
SELECT here.relname::text, coalesce(pg_sequence_last_value(here.oid), 0)
FROM pg_class AS here
WHERE here.relkind = 'S' AND here.relnamespace = current_schema()::regnamespace
  AND (here.relname = ANY (%(sequences)s)
       OR EXISTS (
           SELECT FROM pg_depend AS d JOIN pg_class AS t ON t.oid = d.refobjid
           WHERE d.classid = 'pg_class'::regclass AND d.objid = here.oid AND d.deptype IN ('a', 'i')
             AND t.relname = ANY (%(tables)s)))
