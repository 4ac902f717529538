-- Messages that are finished here and perhaps not known as such to JetStream: the acknowledgement was
-- lost with a connection. Acknowledging again does no harm. A subscription that acknowledges on receipt is
-- done with a message, as far as JetStream goes, once its row is committed; so is what is parked.
SELECT message_id, stream_seq, ack_subject
FROM inbox_messages
WHERE stream = %(stream)s
  AND stream_seq > %(after)s
  AND stream_seq <= %(upto)s
  AND subscription = %(subscription)s
  AND (processed_at < now() - interval '1 second'
       OR dead_lettered_at < now() - interval '1 second'
       OR enqueued_at = 'infinity'
       OR %(on_receipt)s AND received_at < now() - interval '1 second')
ORDER BY stream_seq
LIMIT 1000
