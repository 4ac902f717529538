-- Note an operator's decision over incidents.
UPDATE dead_letters
SET status = %(status)s, closed_at = clock_timestamp(), closed_by = %(actor)s, note = %(note)s
WHERE id = ANY (%(ids)s::bigint[])
