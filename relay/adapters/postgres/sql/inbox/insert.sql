-- Insert a batch of received messages. A known id is not inserted again: the row takes the reply subject and the
-- stream place of the latest delivery, and the caller learns whether the message is finished. Both change
-- together. If a message is in the stream twice, recovery acknowledges the place that the row does not hold.
--
-- A message whose row was archived is left out, also of the answer: it was done. OFFSET 0 makes the planner look
-- it up by its key, also in a plan from the time when nothing was archived.
INSERT INTO inbox_messages AS known (
    message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
    event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
    dead_letter_reason, dead_letter_class, enqueued_at)
SELECT message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers::jsonb,
       event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals::jsonb,
       reason, kind, now()
FROM unnest(
    %(message_id)s::uuid[], %(subject)s::text[], %(subscription)s::text[], %(stream)s::text[],
    %(stream_seq)s::bigint[], %(ack_subject)s::text[], %(body)s::bytea[], %(headers)s::text[],
    %(event_type)s::text[], %(event_version)s::int[], %(occurred_at)s::timestamptz[],
    %(partition_key)s::text[], %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(originals)s::text[],
    %(reason)s::text[], %(kind)s::text[])
    AS received (message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
                 event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
                 reason, kind)
WHERE NOT EXISTS (SELECT FROM archived_messages AS a WHERE a.message_id = received.message_id OFFSET 0)
ON CONFLICT (message_id) DO UPDATE
    SET ack_subject = coalesce(nullif(excluded.ack_subject, ''), known.ack_subject),
        stream = excluded.stream,
        stream_seq = excluded.stream_seq
RETURNING message_id,
          (xmax = 0) AS new,
          (processed_at IS NOT NULL OR dead_lettered_at IS NOT NULL) AS done
