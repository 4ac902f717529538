-- Messages by their ids, correlations or places in a stream.
SELECT message_id, source_id, subscription, subject, stream, stream_seq, event_type, event_version, received_at, attempts,
       processed_at, last_error, next_attempt_at, claimed_until >= now() AS running, dead_letter_reason,
       dead_letter_class, dead_lettered_at, requeues,
       relay_attempts_in_short(attempt_log) AS attempt_log, claim_token, correlation_id, causation_id, originals,
       left(coalesce(nullif(headers ->> 'traceparent', ''), headers ->> 'Traceparent'), 200) AS traceparent,
       left(headers ->> 'Relay-Payload', 1000) AS payload_at
FROM inbox_messages
WHERE message_id IN (
    SELECT message_id FROM inbox_messages WHERE message_id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT message_id FROM inbox_messages WHERE source_id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT message_id FROM inbox_messages WHERE correlation_id = ANY (%(correlations)s::uuid[])
    UNION ALL
    SELECT message_id FROM inbox_messages WHERE stream = %(stream)s::text AND stream_seq = %(seq)s::bigint)
ORDER BY received_at
LIMIT %(limit)s
