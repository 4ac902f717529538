-- The webhook has taken the alert, at one time for all its causes; or no webhook gets it ('-infinity').
UPDATE alerts
SET sent_at = CASE WHEN %(posted)s THEN now() ELSE '-infinity' END, told_at = coalesce(told_at, clock_timestamp())
WHERE id = ANY (%(ids)s::bigint[])
