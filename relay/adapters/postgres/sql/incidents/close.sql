-- Record an operator's decision on incidents.
UPDATE dead_letters
SET status = %(status)s, closed_at = clock_timestamp(), closed_by = %(actor)s, note = %(note)s
WHERE id = ANY (%(ids)s::bigint[])
