-- Mark the heads of these keys as enqueued, if they may run: the messages before them are finished. Locked rows
-- are skipped, as in inbox/promote.
WITH heads AS MATERIALIZED (
SELECT i.message_id
FROM inbox_messages AS i
WHERE i.message_id IN (
          SELECT (
              SELECT head.message_id FROM inbox_messages AS head
              WHERE head.subscription = %(subscription)s AND head.order_key = done.order_key
                AND head.order_key IS NOT NULL AND head.processed_at IS NULL AND NOT head.stepped_over
              ORDER BY head.order_seq, head.message_id
              LIMIT 1)
          FROM unnest(%(order_keys)s::text[]) AS done (order_key))
  AND i.dead_lettered_at IS NULL
  AND (i.claimed_until IS NULL OR i.claimed_until < now())
  AND (i.next_attempt_at IS NULL OR i.next_attempt_at <= now())
  AND i.order_seq <= (
          SELECT w.stream_seq FROM inbox_watermarks AS w
          WHERE w.subscription = i.subscription AND w.stream = i.stream)
  AND NOT EXISTS (
          SELECT 1 FROM parked_keys AS p
          WHERE p.subscription = i.subscription AND p.order_key = i.order_key)
FOR NO KEY UPDATE SKIP LOCKED)
UPDATE inbox_messages AS i
SET enqueued_at = now()
FROM heads
WHERE i.message_id = heads.message_id
RETURNING i.message_id
