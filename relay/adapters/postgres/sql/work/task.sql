-- A type of tasks now: how many are in each state with the age of the oldest, the reasons of the last thousand that fail
-- or have failed, and their queues. As tasks/levels, each part reads its own index, up to the limit, and finished tasks
-- are not read.
WITH unfinished AS (
    (SELECT type, queue, available_at, created_at, status, attempts, claimed_until, last_error
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NULL
     ORDER BY queue, priority, seq
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, queue, available_at, created_at, status, attempts, claimed_until, last_error
     FROM task_outbox
     WHERE status = 'pending' AND available_at IS NOT NULL
     ORDER BY queue, available_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, queue, available_at, created_at, status, attempts, claimed_until, last_error
     FROM task_outbox
     WHERE status = 'delivered'
     ORDER BY queue, enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT type, queue, available_at, created_at, status, attempts, claimed_until, last_error
     FROM task_outbox
     WHERE status = 'failed'
     ORDER BY seq DESC
     LIMIT %(limit)s)
), mine AS MATERIALIZED (
    SELECT CASE WHEN status = 'failed' THEN 'dead'
                WHEN claimed_until >= clock_timestamp() THEN 'running'
                WHEN last_error IS NOT NULL THEN 'failing'
                WHEN available_at > clock_timestamp() THEN 'delayed'
                ELSE 'waiting' END AS state,
           greatest(created_at, available_at) AS since, left(last_error, 300) AS reason, queue
    FROM unfinished
    WHERE type = %(name)s
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
SELECT 'queue', queue, NULL, count(*), NULL
FROM mine
GROUP BY queue
