-- Messages that waited behind another one of their key and may run by now. Marks them as enqueued. Locked rows are
-- skipped: the worker that claims or settles them does what is needed, and two statements that wait for each
-- other's rows would deadlock. A message that is claimed or in back-off has its job later: the sweep sends it.
WITH heads AS MATERIALIZED (
SELECT i.message_id
FROM inbox_messages AS i
WHERE i.message_id = ANY (%(ids)s::uuid[])
  AND i.enqueued_at IS NULL
  AND i.dead_lettered_at IS NULL
  AND relay_is_free(i.claimed_until, i.next_attempt_at, interval '0')
  AND EXISTS (SELECT FROM relay_its_turn(i.message_id, i.subscription, i.order_key, i.stream, i.order_seq))
FOR NO KEY UPDATE SKIP LOCKED)
UPDATE inbox_messages AS i
SET enqueued_at = now()
FROM heads
WHERE i.message_id = heads.message_id
RETURNING i.message_id
