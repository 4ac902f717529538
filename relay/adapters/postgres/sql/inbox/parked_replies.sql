-- Reply subjects of messages that wait behind a parked key. The row holds the message, so JetStream may drop it.
SELECT ack_subject
FROM inbox_messages
WHERE subscription = %(subscription)s AND order_key = %(order_key)s
  AND order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over
  AND enqueued_at = 'infinity'
