-- Mark the heads of these keys as enqueued, if they may run: the messages before them are finished. Locked rows
-- are skipped, as in inbox/promote. Not only those that waited: the job of a head may have come too early, and have
-- ended without a claim.
WITH heads AS MATERIALIZED (
SELECT i.message_id
FROM inbox_messages AS i
WHERE i.message_id IN (
          SELECT (SELECT head.message_id FROM relay_head(%(subscription)s, done.order_key) AS head)
          FROM unnest(%(order_keys)s::text[]) AS done (order_key))
  AND i.dead_lettered_at IS NULL
  AND relay_is_free(i.claimed_until, i.next_attempt_at, interval '0')
  AND EXISTS (SELECT FROM relay_may_run(i.subscription, i.order_key, i.stream, i.order_seq))
FOR NO KEY UPDATE SKIP LOCKED)
UPDATE inbox_messages AS i
SET enqueued_at = now()
FROM heads
WHERE i.message_id = heads.message_id
RETURNING i.message_id
