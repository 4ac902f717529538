-- Reply subjects of unfinished messages, a page at a time, to tell JetStream that they are in progress. Messages that
-- are parked or let go are not among them: they are acknowledged. With "due", rows in back-off are not among them either:
-- JetStream has them back.
SELECT received_at, message_id, ack_subject
FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(subscription)s
  AND enqueued_at IS DISTINCT FROM 'infinity'
  AND let_go_at IS NULL
  AND (NOT %(due)s OR next_attempt_at IS NULL OR next_attempt_at <= now())
  AND received_at >= %(received_at)s
  AND (received_at, message_id) > (%(received_at)s, %(message_id)s)
ORDER BY received_at, message_id
LIMIT %(limit)s
