-- Forget keys whose rate holds nothing back any more: more than a start makes, so that the rows are no more than the
-- keys of the last interval. A row that somebody holds is left.
DELETE FROM task_rates
WHERE type = ANY (ARRAY(
    SELECT type
    FROM task_rates
    WHERE strpos(type, E'\n') > 0 AND greatest(free_at, promised_until) < clock_timestamp()
    ORDER BY greatest(free_at, promised_until)
    LIMIT 3
    FOR UPDATE SKIP LOCKED))
