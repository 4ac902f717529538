-- As inbox/overdue, for an ordered subscription. It steps through the index from key to key and reads only the
-- head of each, however many messages wait behind it. A head that is not marked as enqueued is overdue too: the
-- message before it ended, or the watermark moved, and no process was there to go on.
WITH RECURSIVE keys AS (
    (SELECT order_key
     FROM inbox_messages
     WHERE subscription = %(subscription)s
       AND order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over
     ORDER BY order_key
     LIMIT 1)
    UNION ALL
    SELECT (SELECT next.order_key
            FROM inbox_messages AS next
            WHERE next.subscription = %(subscription)s AND next.order_key > keys.order_key
              AND next.order_key IS NOT NULL AND next.processed_at IS NULL AND NOT next.stepped_over
            ORDER BY next.order_key
            LIMIT 1)
    FROM keys
    WHERE keys.order_key IS NOT NULL),
due AS (
    (SELECT head.message_id
     FROM keys
     CROSS JOIN LATERAL (
         SELECT *
         FROM inbox_messages AS first
         WHERE first.subscription = %(subscription)s AND first.order_key = keys.order_key
           AND first.order_key IS NOT NULL AND first.processed_at IS NULL AND NOT first.stepped_over
         ORDER BY first.order_seq, first.message_id
         LIMIT 1) AS head
     WHERE head.dead_lettered_at IS NULL
       AND (head.enqueued_at IS NULL OR head.enqueued_at = 'infinity' OR head.enqueued_at < now() - %(grace)s)
       AND (head.claimed_until IS NULL OR head.claimed_until < now())
       AND (head.next_attempt_at IS NULL OR head.next_attempt_at <= now())
       AND head.order_seq <= (
           SELECT w.stream_seq FROM inbox_watermarks AS w
           WHERE w.subscription = head.subscription AND w.stream = head.stream)
       AND NOT EXISTS (
           SELECT 1 FROM parked_keys AS p
           WHERE p.subscription = head.subscription AND p.order_key = head.order_key)
     LIMIT %(limit)s)
    UNION ALL
    (SELECT message_id
     FROM inbox_messages
     WHERE processed_at IS NULL
       AND dead_lettered_at IS NULL
       AND enqueued_at < now() - %(grace)s
       AND subscription = %(subscription)s
       AND order_key IS NULL
       AND (claimed_until IS NULL OR claimed_until < now())
       AND (next_attempt_at IS NULL OR next_attempt_at <= now())
     ORDER BY enqueued_at
     LIMIT %(limit)s))
UPDATE inbox_messages
SET enqueued_at = now()
WHERE message_id IN (
    SELECT message_id
    FROM inbox_messages
    WHERE message_id IN (SELECT message_id FROM due)
    FOR UPDATE SKIP LOCKED)
RETURNING message_id
