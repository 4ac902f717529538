-- Insert a batch of received messages. What its subscription knows is not inserted again: the row takes the reply
-- subject and the stream place of the latest delivery, and the caller learns whether the message is finished. Both
-- change together. If a message is in the stream twice, recovery acknowledges the place that the row does not hold.
--
-- A message without a key is left out, also of the answer: it is in the archive, or its id is another's (inbox/archived
-- tells which). The condition of the update leaves out one whose key another message took in this moment.
INSERT INTO inbox_messages AS known (
    message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
    event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
    dead_letter_reason, dead_letter_class, enqueued_at, source_id)
SELECT key, subject, subscription, stream, stream_seq, ack_subject, body, headers::jsonb,
       event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals::jsonb,
       reason, kind, now(), nullif(coalesce(source_id, message_id), key)
FROM unnest(
    %(message_id)s::uuid[], %(subject)s::text[], %(subscription)s::text[], %(stream)s::text[],
    %(stream_seq)s::bigint[], %(ack_subject)s::text[], %(body)s::bytea[], %(headers)s::text[],
    %(event_type)s::text[], %(event_version)s::int[], %(occurred_at)s::timestamptz[],
    %(partition_key)s::text[], %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(originals)s::text[],
    %(reason)s::text[], %(kind)s::text[], %(source_id)s::uuid[])
    AS received (message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
                 event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
                 reason, kind, source_id),
    relay_inbox_key(coalesce(received.source_id, received.message_id), received.subscription,
                    CASE WHEN received.source_id IS NOT NULL THEN received.message_id END) AS found
WHERE key IS NOT NULL
ON CONFLICT (message_id) DO UPDATE
    SET ack_subject = coalesce(nullif(excluded.ack_subject, ''), known.ack_subject),
        stream = excluded.stream,
        stream_seq = excluded.stream_seq
    WHERE (known.subscription IS NULL OR known.subscription = excluded.subscription)
      AND known.source_id IS NOT DISTINCT FROM excluded.source_id
RETURNING message_id,
          (xmax = 0) AS new,
          (num_nonnulls(processed_at, dead_lettered_at, let_go_at) > 0) AS done,
          false AS parked,
          true AS runnable,
          source_id
