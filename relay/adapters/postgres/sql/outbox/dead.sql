-- How many events were given up and wait for an operator, counted up to the limit.
SELECT count(*)
FROM (
    SELECT
    FROM outbox_events
    WHERE dead_at IS NOT NULL AND published_at IS NULL
    ORDER BY dead_at
    LIMIT %(counted)s) AS dead
