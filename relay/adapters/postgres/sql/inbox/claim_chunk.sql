-- As inbox/claim, for many rows at once and under one token. Rows that another worker has locked are skipped. A
-- row that was tried before is not claimed; only its id is returned. It may have killed its worker, so it is
-- handled alone and cannot take a chunk with it again.
WITH due AS MATERIALIZED (
    SELECT message_id, attempts
    FROM inbox_messages
    WHERE message_id = ANY (%(ids)s::uuid[])
      AND num_nonnulls(processed_at, dead_lettered_at) = 0
      AND (claimed_until IS NULL OR claimed_until < now())
      AND (next_attempt_at IS NULL OR next_attempt_at <= now() + interval '50 milliseconds')
    FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE inbox_messages AS i
    SET claim_token = %(token)s,
        claimed_until = now() + %(lease)s,
        attempts = CASE WHEN i.dead_letter_reason IS NULL THEN 1 ELSE 0 END
    FROM due
    WHERE i.message_id = due.message_id AND due.attempts = 0
    RETURNING i.message_id, i.subject, i.subscription, i.stream, i.stream_seq, i.ack_subject, i.body, i.headers,
              i.event_type, i.event_version, i.occurred_at, i.partition_key, i.correlation_id, i.causation_id,
              i.order_key, i.originals, i.attempts, i.requeues, i.dead_letter_reason, i.dead_letter_class)
SELECT * FROM taken
UNION ALL
SELECT message_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM due
WHERE attempts > 0
