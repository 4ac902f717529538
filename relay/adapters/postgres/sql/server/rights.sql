-- The rights on tables and functions that this role needs and does not have.
SELECT need.privilege || ' on ' || need.name
FROM unnest(%(tables)s::text[], %(privileges)s::text[]) AS need (name, privilege)
JOIN pg_class AS c ON c.relname = need.name AND c.relnamespace = current_schema()::regnamespace
WHERE NOT has_table_privilege(c.oid, need.privilege)
UNION
SELECT 'EXECUTE on ' || p.proname
FROM pg_proc AS p
WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY (%(functions)s::text[])
  AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1
