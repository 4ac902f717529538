-- Messages that are finished here, but perhaps not for JetStream: the acknowledgement may be lost with a
-- connection. A second acknowledgement does no harm. With acknowledgement on receipt, a message is finished for
-- JetStream once its row is committed. The same holds for a message that is parked or let go.
SELECT coalesce(source_id, message_id), stream_seq, ack_subject, headers ->> 'Nats-Msg-Id'
FROM inbox_messages
WHERE stream = %(stream)s
  AND stream_seq > %(after)s
  AND stream_seq <= %(upto)s
  AND subscription = %(subscription)s
  AND (processed_at < now() - interval '1 second'
       OR dead_lettered_at < now() - interval '1 second'
       OR enqueued_at = 'infinity'
       OR let_go_at < now() - interval '1 second'
       OR %(on_receipt)s AND received_at < now() - interval '1 second')
ORDER BY stream_seq
LIMIT 1000
