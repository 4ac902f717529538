-- Record letters that no inbox row confirms, each under a key of its own, and return the new ones.
INSERT INTO dead_letters (
    message_id, occurrence, subscription, subject, stream, stream_seq, event_type, correlation_id,
    causation_id, class, reason, attempts, headers, original, letter_stream, letter_seq, originals)
SELECT message_id, occurrence, subscription, subject, stream, stream_seq, event_type, correlation_id,
       causation_id, kind, reason, attempts, headers::jsonb, original, letter_stream, letter_seq, originals::jsonb
FROM unnest(
    %(message_id)s::uuid[], %(occurrence)s::int[], %(subscription)s::text[], %(subject)s::text[],
    %(stream)s::text[], %(stream_seq)s::bigint[], %(event_type)s::text[], %(correlation_id)s::uuid[],
    %(causation_id)s::uuid[], %(kind)s::text[], %(reason)s::text[], %(attempts)s::int[],
    %(headers)s::text[], %(original)s::bytea[], %(letter_stream)s::text[], %(letter_seq)s::bigint[],
    %(originals)s::text[])
    AS letter (message_id, occurrence, subscription, subject, stream, stream_seq, event_type,
               correlation_id, causation_id, kind, reason, attempts, headers, original,
               letter_stream, letter_seq, originals)
ON CONFLICT (message_id, occurrence) DO NOTHING
RETURNING id, message_id, subscription, event_type, correlation_id, causation_id, class, reason, attempts,
          coalesce(headers ->> 'traceparent', headers ->> 'Traceparent'), originals
