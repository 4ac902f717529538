-- As inbox/insert, for an ordered subscription. Only messages that may run now are marked as enqueued. A message
-- behind another one of its key, or beyond the watermark, waits for its turn. A message of a parked key is parked
-- too. A copy does not change the order of a message, unless the copy has a lower place in the stream.
INSERT INTO inbox_messages AS known (
    message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
    event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
    dead_letter_reason, dead_letter_class, order_key, order_seq, enqueued_at, source_id)
SELECT key, subject, subscription, stream, stream_seq, ack_subject, body, headers::jsonb,
       event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals::jsonb,
       reason, kind, order_key, order_seq,
       CASE
           WHEN order_key IS NULL THEN now()
           WHEN EXISTS (
               SELECT 1 FROM parked_keys AS p
               WHERE p.subscription = received.subscription AND p.order_key = received.order_key) THEN 'infinity'
           WHEN place = 1 AND order_seq <= %(mark)s AND NOT EXISTS (
               SELECT FROM relay_head(received.subscription, received.order_key) AS head
               WHERE (head.order_seq, head.message_id) < (received.order_seq, received.key))
               THEN now()
       END,
       nullif(coalesce(source_id, message_id), key)
FROM (
    SELECT *, row_number() OVER (PARTITION BY order_key ORDER BY order_seq, key) AS place
    FROM unnest(
        %(message_id)s::uuid[], %(subject)s::text[], %(subscription)s::text[], %(stream)s::text[],
        %(stream_seq)s::bigint[], %(ack_subject)s::text[], %(body)s::bytea[], %(headers)s::text[],
        %(event_type)s::text[], %(event_version)s::int[], %(occurred_at)s::timestamptz[],
        %(partition_key)s::text[], %(correlation_id)s::uuid[], %(causation_id)s::uuid[], %(originals)s::text[],
        %(reason)s::text[], %(kind)s::text[], %(source_id)s::uuid[], %(order_key)s::text[], %(order_seq)s::bigint[])
        AS batch (message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
                  event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, originals,
                  reason, kind, source_id, order_key, order_seq),
        relay_inbox_key(coalesce(batch.source_id, batch.message_id), batch.subscription,
                        CASE WHEN batch.source_id IS NOT NULL THEN batch.message_id END) AS found
    WHERE key IS NOT NULL) AS received
ON CONFLICT (message_id) DO UPDATE
    SET ack_subject = coalesce(nullif(excluded.ack_subject, ''), known.ack_subject),
        stream = excluded.stream,
        stream_seq = excluded.stream_seq,
        order_seq = least(known.order_seq, excluded.order_seq)
    WHERE (known.subscription IS NULL OR known.subscription = excluded.subscription)
      AND known.source_id IS NOT DISTINCT FROM excluded.source_id
RETURNING message_id,
          (xmax = 0) AS new,
          (num_nonnulls(processed_at, dead_lettered_at, let_go_at) > 0) AS done,
          (enqueued_at IS NOT DISTINCT FROM 'infinity') AS parked,
          (enqueued_at IS NOT NULL) AS runnable,
          source_id
