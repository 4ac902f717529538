-- Events that a stream has dropped and the outbox still has, in the order of the stream. A payload of more bytes than are
-- sent (kept) stays here: its size and its digest come instead of it.
SELECT id::text, event_type, event_version, CASE WHEN NOT part.stays THEN part.payload END,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, partition_key, topic, headers::text,
       publish_attempts, generation, originals::text, stream, seq, published_seq, published_at,
       CASE WHEN part.stays THEN octet_length(convert_to(part.payload, 'UTF8')) END,
       CASE WHEN part.stays THEN encode(sha256(convert_to(part.payload, 'UTF8')), 'hex') END
FROM (
    SELECT *
    FROM outbox_events
    WHERE published_stream = %(stream)s AND published_seq > %(after)s AND published_seq < %(before)s
      AND published_at IS NOT NULL
    ORDER BY published_seq
    LIMIT %(limit)s) AS event,
LATERAL (
    SELECT text.payload, coalesce(octet_length(text.payload) > %(kept)s::int, false) AS stays
    FROM (SELECT event.payload::text AS payload OFFSET 0) AS text
    OFFSET 0) AS part
ORDER BY published_seq
