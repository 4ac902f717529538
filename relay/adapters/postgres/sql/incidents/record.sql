-- Record dead inbox rows as incidents, each once, and return the new ones. All that an incident says comes from its
-- row. Its letter gives only its place in the stream, if it is known yet.
INSERT INTO dead_letters (
    message_id, occurrence, subscription, subject, stream, stream_seq, event_type, correlation_id, causation_id,
    class, reason, attempts, headers, original, letter_stream, letter_seq, originals)
SELECT i.message_id, i.requeues + 1, i.subscription, i.subject, i.stream, i.stream_seq, i.event_type, i.correlation_id,
       i.causation_id, coalesce(i.dead_letter_class, 'exhausted'), coalesce(i.dead_letter_reason, 'no reason recorded'),
       i.attempts, i.headers, i.body, dead.letter_stream, dead.letter_seq, i.originals
FROM unnest(%(message_id)s::uuid[], %(letter_stream)s::text[], %(letter_seq)s::bigint[])
    AS dead (message_id, letter_stream, letter_seq)
JOIN inbox_messages AS i USING (message_id)
WHERE i.processed_at IS NULL AND num_nonnulls(i.dead_lettered_at, i.dead_letter_reason) > 0
ON CONFLICT (message_id, occurrence) DO NOTHING
RETURNING id, message_id, subscription, event_type, correlation_id, causation_id, class, reason, attempts,
          coalesce(headers ->> 'traceparent', headers ->> 'Traceparent'), originals
