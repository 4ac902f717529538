-- How the tasks of each queue move: how many are due and not claimed, the first of them, for how long it has been due,
-- and how long ago a task of the queue was last claimed, tried or finished. A task that waits for its turn, for room
-- or for its next attempt is not due. A task whose type no worker knows is due all the time.
-- For a queue that is not among the last finished tasks, ten times as many of the last %(bound)s are looked at.
WITH RECURSIVE ready AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'pending' AND available_at IS NULL
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'pending' AND task.available_at IS NULL AND task.queue > ready.queue)
    FROM ready WHERE ready.queue IS NOT NULL
), delayed AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'pending' AND available_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'pending' AND task.available_at IS NOT NULL AND task.queue > delayed.queue)
    FROM delayed WHERE delayed.queue IS NOT NULL
), delivered AS (
    SELECT min(queue) AS queue FROM task_outbox WHERE status = 'delivered'
    UNION ALL
    SELECT (SELECT min(task.queue) FROM task_outbox AS task
            WHERE task.status = 'delivered' AND task.queue > delivered.queue)
    FROM delivered WHERE delivered.queue IS NOT NULL
), found AS (
    SELECT queue
    FROM ((SELECT queue FROM ready LIMIT %(parts)s)
          UNION (SELECT queue FROM delayed LIMIT %(parts)s)
          UNION (SELECT queue FROM delivered LIMIT %(parts)s)) AS queues
    WHERE queue IS NOT NULL
    LIMIT %(parts)s
), last AS MATERIALIZED (
    SELECT queue, max(finished_at) AS at
    FROM (
        SELECT queue, finished_at
        FROM task_outbox
        WHERE finished_at IS NOT NULL AND finished_at <= clock_timestamp()
        ORDER BY finished_at DESC
        LIMIT %(looked)s) AS ended
    GROUP BY queue
), longer AS MATERIALIZED (
    SELECT queue AS part, max(finished_at) AS at
    FROM (
        SELECT queue, finished_at
        FROM task_outbox
        WHERE finished_at IS NOT NULL
          AND finished_at > now() - %(bound)s::interval AND finished_at <= clock_timestamp()
        ORDER BY finished_at DESC
        LIMIT 10 * %(looked)s) AS recent
    GROUP BY 1
), running AS MATERIALIZED (
    SELECT DISTINCT queue FROM task_outbox WHERE claim_token IS NOT NULL AND claimed_until > clock_timestamp()
)
SELECT found.queue AS part, due.count AS due, coalesce(due.seconds, 0)::float8 AS due_seconds,
       coalesce(due.head, '') AS head,
       CASE WHEN running.queue IS NOT NULL OR put_off.some THEN 0::float8
            ELSE extract(epoch FROM clock_timestamp() - ended.at)::float8 END AS moved_seconds,
       coalesce(due.unknown, false) AS overtaken
FROM found
LEFT JOIN last USING (queue)
LEFT JOIN running USING (queue), LATERAL (
    SELECT count(*) AS count, extract(epoch FROM clock_timestamp() - min(since)) AS seconds,
           (array_agg(id::text ORDER BY since))[1] AS head,
           bool_or(unknown AND since < clock_timestamp() - %(bound)s::interval) AS unknown
    FROM (
        (SELECT id, greatest(created_at, timestamptz '2000-01-01') AS since, false AS unknown
         FROM task_outbox
         WHERE status = 'pending' AND available_at IS NULL AND queue = found.queue
         ORDER BY queue, priority, seq
         LIMIT %(counted)s)
        UNION ALL
        (SELECT id, greatest(created_at, available_at, timestamptz '2000-01-01'), false
         FROM task_outbox
         WHERE status = 'pending' AND available_at IS NOT NULL AND available_at <= now() AND queue = found.queue
         ORDER BY queue, available_at
         LIMIT %(counted)s)
        UNION ALL
        (SELECT id,
                greatest(created_at, available_at, timestamptz '2000-01-01',
                         CASE WHEN waits_for IS DISTINCT FROM 'handler' THEN next_attempt_at END),
                waits_for IS NOT DISTINCT FROM 'handler'
         FROM (
            SELECT id, waits_for, created_at, available_at, next_attempt_at, claimed_until
            FROM task_outbox
            WHERE status = 'delivered' AND queue = found.queue
            ORDER BY queue, enqueued_at
            LIMIT %(counted)s) AS taken
         WHERE (claimed_until IS NULL OR claimed_until < clock_timestamp())
           AND (waits_for = 'handler' OR next_attempt_at IS NULL OR next_attempt_at <= now()))) AS first) AS due,
     LATERAL (
    SELECT EXISTS (
        SELECT FROM task_outbox
        WHERE status = 'delivered' AND queue = found.queue
          AND enqueued_at > now() AND enqueued_at < now() + %(bound)s::interval
          AND waits_for IS DISTINCT FROM 'handler') AS some) AS put_off, LATERAL (
    SELECT coalesce(last.at, CASE WHEN due.seconds > extract(epoch FROM %(bound)s::interval) THEN (
        SELECT longer.at FROM longer WHERE longer.part = found.queue) END) AS at) AS ended
