-- Events that a stream has dropped and the outbox still has, in the order of the stream.
SELECT id::text, event_type, event_version, payload::text,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, partition_key, topic, headers::text,
       publish_attempts, generation, originals::text, stream, seq, published_seq, published_at
FROM outbox_events
WHERE published_stream = %(stream)s AND published_seq > %(after)s AND published_seq < %(before)s
  AND published_at IS NOT NULL
ORDER BY published_seq
LIMIT %(limit)s
