-- Messages that waited behind another one of their key and may run by now. Marks them as enqueued. Locked rows are
-- skipped: the worker that claims or settles them does what is needed, and two statements that wait for each
-- other's rows would deadlock.
WITH heads AS MATERIALIZED (
SELECT i.message_id
FROM inbox_messages AS i
WHERE i.message_id = ANY (%(ids)s::uuid[])
  AND i.enqueued_at IS NULL
  AND i.dead_lettered_at IS NULL
  AND i.message_id = (
          SELECT head.message_id FROM inbox_messages AS head
          WHERE head.subscription = i.subscription AND head.order_key = i.order_key
            AND head.order_key IS NOT NULL AND head.processed_at IS NULL AND NOT head.stepped_over
          ORDER BY head.order_seq, head.message_id
          LIMIT 1)
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
