-- How many messages of a subscription are running. One whose worker died counts until its lease expires. ORDER BY makes
-- the planner use the index.
SELECT count(*)
FROM (
    SELECT claimed_until
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(subscription)s
    ORDER BY enqueued_at) AS unfinished
WHERE claimed_until >= clock_timestamp()
