-- The facts about these causes were stated.
UPDATE alerts SET told_at = clock_timestamp() WHERE id = ANY (%(ids)s::bigint[])
