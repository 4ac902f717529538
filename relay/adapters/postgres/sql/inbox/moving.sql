-- How the messages of each subscription move: how many are due and not claimed, the first of them, for how long it
-- has been due, and how long ago the subscription last moved. A claim, and a retry that waits for its time, are
-- movement. A message was overtaken if one that came more than %(bound)s after it was due is processed. In an ordered
-- subscription a message is due from its turn on; then it is enqueued. The last column: how long ago a message was
-- processed or claimed, whatever waits for another attempt. For a subscription that is not among the last processed
-- messages, because others are much busier, ten times as many of the last %(bound)s are looked at.
WITH RECURSIVE found AS (
    (SELECT subscription
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL
     ORDER BY subscription
     LIMIT 1)
    UNION ALL
    SELECT (SELECT next.subscription
            FROM inbox_messages AS next
            WHERE next.processed_at IS NULL AND next.dead_lettered_at IS NULL
              AND next.subscription > found.subscription
            ORDER BY next.subscription
            LIMIT 1)
    FROM found
    WHERE found.subscription IS NOT NULL
), last AS MATERIALIZED (
    SELECT subscription, max(processed_at) AS at, max(received_at) AS received_at
    FROM (
        SELECT subscription, processed_at, received_at
        FROM inbox_messages
        WHERE processed_at IS NOT NULL AND processed_at <= clock_timestamp()
        ORDER BY processed_at DESC
        LIMIT %(looked)s) AS ended
    GROUP BY subscription
), longer AS MATERIALIZED (
    SELECT subscription AS part, max(processed_at) AS at
    FROM (
        SELECT subscription, processed_at
        FROM inbox_messages
        WHERE processed_at IS NOT NULL
          AND processed_at > now() - %(bound)s::interval AND processed_at <= clock_timestamp()
        ORDER BY processed_at DESC
        LIMIT 10 * %(looked)s) AS recent
    GROUP BY 1
)
SELECT found.subscription, due.count AS due, coalesce(due.seconds, 0)::float8 AS due_seconds,
       coalesce(due.head, '') AS head,
       CASE WHEN due.claimed > 0 OR put_off.some THEN 0::float8
            ELSE extract(epoch FROM clock_timestamp() - ended.at)::float8 END AS moved_seconds,
       coalesce(due.turn_since < last.received_at - %(bound)s::interval, false) AS overtaken,
       CASE WHEN due.claimed > 0 THEN 0::float8
            ELSE extract(epoch FROM clock_timestamp() - ended.at)::float8 END AS worked_seconds
FROM found
LEFT JOIN last USING (subscription), LATERAL (
    SELECT count(*) FILTER (WHERE free) AS count,
           count(*) FILTER (WHERE NOT free) AS claimed,
           extract(epoch FROM clock_timestamp() - min(since) FILTER (WHERE free)) AS seconds,
           min(turn_since) FILTER (WHERE free) AS turn_since,
           (array_agg(message_id::text ORDER BY turn_since) FILTER (WHERE free))[1] AS head
    FROM (
        SELECT message_id, claimed_until IS NULL OR claimed_until < clock_timestamp() AS free,
               greatest(received_at, next_attempt_at, timestamptz '2000-01-01') AS since,
               greatest(received_at, next_attempt_at, timestamptz '2000-01-01',
                        CASE WHEN order_key IS NOT NULL THEN enqueued_at END) AS turn_since
        FROM inbox_messages
        WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at <= now()
          AND subscription = found.subscription
        ORDER BY enqueued_at
        LIMIT %(counted)s) AS first) AS due, LATERAL (
    SELECT EXISTS (
        SELECT FROM inbox_messages
        WHERE processed_at IS NULL AND dead_lettered_at IS NULL
          AND enqueued_at > now() AND enqueued_at < now() + %(bound)s::interval
          AND subscription = found.subscription) AS some) AS put_off, LATERAL (
    SELECT coalesce(last.at, CASE WHEN due.seconds > extract(epoch FROM %(bound)s::interval) THEN (
        SELECT longer.at FROM longer WHERE longer.part = found.subscription) END) AS at) AS ended
WHERE found.subscription IS NOT NULL
