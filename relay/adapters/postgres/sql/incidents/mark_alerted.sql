-- The alert was accepted.
UPDATE dead_letters SET alerted_at = clock_timestamp() WHERE id = ANY (%(ids)s::bigint[])
