-- Count the rows of a subscription that could be handled now or are being handled, up to a limit of each kind. A row
-- that has failed has a next_attempt_at, and does not count: however many fail, others are fetched. In an ordered
-- subscription a message that waits for its turn has no enqueued_at. It counts, unless the head of its key has failed
-- or is dead. This is looked up only if there are many. Parked messages do not count.
-- While the handler is away, there is room for five times as many: a good one behind bad ones must come in to be tried.
-- ORDER BY makes the planner use the index. Without it, the planner might read a table full of finished rows from
-- its beginning.
WITH room AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM relay_may_call(NULL, %(subscription)s)) THEN 1 ELSE 5 END AS times),
in_turn AS (
    SELECT count(*) / (SELECT times FROM room) AS count
    FROM (SELECT 1
          FROM inbox_messages
          WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at <= now()
            AND subscription = %(subscription)s AND next_attempt_at IS NULL
          ORDER BY enqueued_at
          LIMIT %(limit)s * (SELECT times FROM room)) AS due),
behind AS (
    SELECT count(*) AS count
    FROM (SELECT 1
          FROM inbox_messages
          WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at IS NULL
            AND subscription = %(subscription)s
          ORDER BY enqueued_at
          LIMIT %(limit)s) AS waiting)
SELECT in_turn.count + CASE WHEN behind.count < %(limit)s THEN behind.count ELSE (
    SELECT coalesce(sum(keys.count), 0)
    FROM (SELECT order_key, count(*) AS count
          FROM inbox_messages
          WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at IS NULL
            AND subscription = %(subscription)s
          GROUP BY order_key) AS keys
    WHERE NOT EXISTS (
        SELECT FROM relay_head(%(subscription)s, keys.order_key) AS head
        WHERE relay_is_held_up(head.dead_lettered_at, head.next_attempt_at, head.claimed_until, head.enqueued_at, NULL)))
    END
FROM in_turn, behind
