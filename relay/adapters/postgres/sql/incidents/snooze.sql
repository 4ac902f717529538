-- Hide open incidents for a time, after which an alert names them again. For no time: they are open, and nobody needs
-- another alert.
UPDATE dead_letters
SET snoozed_until = clock_timestamp() + %(duration)s::interval,
    alerted_at = CASE WHEN %(duration)s::interval IS NULL THEN clock_timestamp() END
WHERE id = ANY (%(ids)s::bigint[])
