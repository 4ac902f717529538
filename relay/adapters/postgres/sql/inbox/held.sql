-- The Nats-Msg-Id of what the inbox of a subscription holds from places of a stream.
SELECT stream_seq, headers ->> 'Nats-Msg-Id'
FROM inbox_messages
WHERE stream = %(stream)s AND stream_seq = ANY (%(seqs)s::bigint[]) AND subscription = %(subscription)s
