-- As inbox/claim, for many rows at once and under one token. Rows that another worker has locked are skipped. A
-- row that was tried before is not claimed; only its id is returned. It may have killed its worker, so it is
-- handled alone and cannot take a chunk with it again. In an ordered subscription only the heads of keys are
-- claimed, under the conditions of inbox/claim_ordered. So no chunk holds two messages of a key.
WITH due AS MATERIALIZED (
    SELECT i.message_id,
           i.attempts > 0 OR (%(ordered)s AND i.order_key IS NOT NULL AND i.requeues > 0) AS alone
    FROM inbox_messages AS i
    WHERE i.message_id = ANY (%(ids)s::uuid[])
      AND num_nonnulls(i.processed_at, i.dead_lettered_at) = 0
      AND (i.claimed_until IS NULL OR i.claimed_until < now())
      AND (i.next_attempt_at IS NULL OR i.next_attempt_at <= now() + interval '50 milliseconds')
      AND (NOT %(ordered)s OR i.order_key IS NULL OR (
          i.message_id = (
              SELECT head.message_id FROM inbox_messages AS head
              WHERE head.subscription = i.subscription AND head.order_key = i.order_key
                AND head.order_key IS NOT NULL AND head.processed_at IS NULL AND NOT head.stepped_over
              ORDER BY head.order_seq, head.message_id
              LIMIT 1)
          AND i.order_seq <= (
              SELECT w.stream_seq FROM inbox_watermarks AS w
              WHERE w.subscription = i.subscription AND w.stream = i.stream)
          AND NOT EXISTS (
              SELECT 1 FROM parked_keys AS p
              WHERE p.subscription = i.subscription AND p.order_key = i.order_key)))
    FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE inbox_messages AS i
    SET claim_token = %(token)s,
        claimed_until = now() + %(lease)s,
        attempts = CASE WHEN i.dead_letter_reason IS NULL THEN 1 ELSE 0 END
    FROM due
    WHERE i.message_id = due.message_id AND NOT due.alone
    RETURNING i.message_id, i.subject, i.subscription, i.stream, i.stream_seq, i.ack_subject, i.body, i.headers,
              i.event_type, i.event_version, i.occurred_at, i.partition_key, i.correlation_id, i.causation_id,
              i.order_key, i.originals, i.attempts, i.requeues, i.received_at, i.dead_letter_reason, i.dead_letter_class)
SELECT * FROM taken
UNION ALL
SELECT message_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM due
WHERE alone
