-- As inbox/overdue, for an ordered subscription. It steps through the index from key to key and reads only the
-- head of each, however many messages wait behind it. A head that is not marked as enqueued is overdue too: the
-- message before it ended, or the watermark moved, and no process was there to go on.
WITH RECURSIVE keys AS (
    (SELECT order_key
     FROM inbox_messages
     WHERE subscription = %(subscription)s AND relay_holds_key(order_key, processed_at, stepped_over)
     ORDER BY order_key
     LIMIT 1)
    UNION ALL
    SELECT (SELECT next.order_key
            FROM inbox_messages AS next
            WHERE next.subscription = %(subscription)s AND next.order_key > keys.order_key
              AND relay_holds_key(next.order_key, next.processed_at, next.stepped_over)
            ORDER BY next.order_key
            LIMIT 1)
    FROM keys
    WHERE keys.order_key IS NOT NULL),
due AS (
    (SELECT head.message_id
     FROM keys
     CROSS JOIN LATERAL relay_head(%(subscription)s, keys.order_key) AS head
     WHERE head.dead_lettered_at IS NULL
       AND (head.enqueued_at IS NULL OR head.enqueued_at = 'infinity' OR head.enqueued_at < now() - %(grace)s)
       AND relay_is_free(head.claimed_until, head.next_attempt_at, interval '0')
       AND (%(failed)s::boolean IS NULL OR (head.next_attempt_at IS NOT NULL) = %(failed)s::boolean)
       AND EXISTS (SELECT FROM relay_may_run(%(subscription)s, keys.order_key, head.stream, head.order_seq))
     LIMIT %(limit)s)
    UNION ALL
    (SELECT message_id
     FROM inbox_messages
     WHERE processed_at IS NULL
       AND dead_lettered_at IS NULL
       AND enqueued_at < now() - %(grace)s
       AND subscription = %(subscription)s
       AND order_key IS NULL
       AND relay_is_free(claimed_until, next_attempt_at, interval '0')
       AND (%(failed)s::boolean IS NULL OR (next_attempt_at IS NOT NULL) = %(failed)s::boolean)
     ORDER BY enqueued_at
     LIMIT %(limit)s))
UPDATE inbox_messages
SET enqueued_at = now()
WHERE message_id IN (
    SELECT message_id
    FROM inbox_messages
    WHERE message_id IN (SELECT message_id FROM due)
      AND EXISTS (SELECT FROM relay_may_call(NULL, %(subscription)s))
    FOR UPDATE SKIP LOCKED)
RETURNING message_id
