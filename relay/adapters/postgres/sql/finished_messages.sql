-- Reply subjects of messages that are finished here and perhaps not known as such to JetStream: the
-- acknowledgement was lost with a connection. Acknowledging again does no harm.
SELECT ack_subject
FROM inbox_messages
WHERE stream = %(stream)s
  AND stream_seq > %(after)s
  AND stream_seq <= %(upto)s
  AND subscription = %(subscription)s
  AND (processed_at < now() - interval '1 second' OR dead_lettered_at < now() - interval '1 second')
ORDER BY stream_seq
LIMIT 1000
