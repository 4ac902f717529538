-- Reply subjects of what is set aside with a parked key: the row is the truth, JetStream may forget it.
SELECT ack_subject
FROM inbox_messages
WHERE subscription = %(subscription)s AND order_key = %(order_key)s
  AND order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over
  AND enqueued_at = 'infinity'
