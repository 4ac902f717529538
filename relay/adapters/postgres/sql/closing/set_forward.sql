-- Sequences are not in the copy that logical replication makes.
SELECT setval(format('%%I.%%I', current_schema(), %(name)s::text)::regclass, %(number)s)
