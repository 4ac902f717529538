-- A subscription now: how many of its messages are in each state with the age of the oldest, the reasons of the last
-- thousand that fail or died, its parked keys, and whether its handler is away. Counted up to the limit; each part reads
-- its own index.
WITH mine AS MATERIALIZED (
    (SELECT CASE WHEN claimed_until >= clock_timestamp() THEN 'running'
                 WHEN next_attempt_at = 'infinity' THEN 'held'
                 WHEN enqueued_at = 'infinity' THEN 'parked'
                 WHEN num_nonnulls(last_error, dead_letter_reason) > 0 THEN 'failing'
                 ELSE 'waiting' END AS state,
            received_at AS since, left(coalesce(dead_letter_reason, last_error), 300) AS reason
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(name)s
     ORDER BY enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT 'dead', recorded_at, left(reason, 300)
     FROM dead_letters AS d
     WHERE status = 'open' AND subscription = %(name)s AND class <> 'unconfirmed' AND relay_incident_state(d) = 'open'
     ORDER BY recorded_at DESC
     LIMIT %(limit)s)
), recent AS (
    SELECT state, since, reason, row_number() OVER (PARTITION BY state ORDER BY since DESC) AS place
    FROM mine
    WHERE state IN ('failing', 'dead')
)
SELECT 'state' AS what, state AS name, NULL AS reason, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(since)))::float8 AS seconds
FROM mine
GROUP BY state
UNION ALL
SELECT 'reason', state, reason, count(*), greatest(0, extract(epoch FROM clock_timestamp() - max(since)))::float8
FROM recent
WHERE place <= 1000
GROUP BY state, reason
UNION ALL
SELECT 'keys', NULL, NULL, count(*), NULL
FROM (SELECT FROM parked_keys WHERE subscription = %(name)s LIMIT %(limit)s) AS keys
UNION ALL
SELECT 'away', NULL, left(reason, 300), 1, greatest(0, extract(epoch FROM clock_timestamp() - opened_at))::float8
FROM handler_circuits
WHERE subscription = %(name)s AND opened_at IS NOT NULL
