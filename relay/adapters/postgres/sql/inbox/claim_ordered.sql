-- As inbox/claim, for an ordered subscription. It claims only the head of a key, and only when no earlier message
-- of the key can still arrive. The index leads straight to the head. The other messages of the key are read only
-- for a message that was requeued: the message that ran in its place may still be running.
-- The claim does not wait for the disk: a crash that undoes it also disconnects its worker.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages AS i
SET claim_token = %(token)s,
    claimed_until = now() + %(lease)s,
    attempts = attempts + CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                                 OR dead_letter_reason IS NOT NULL THEN 0 ELSE 1 END,
    dead_letter_reason = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                              THEN %(exhausted)s ELSE dead_letter_reason END,
    dead_letter_class = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                             THEN 'exhausted' ELSE dead_letter_class END
FROM relaxed
WHERE i.message_id = %(message_id)s
  AND num_nonnulls(i.processed_at, i.dead_lettered_at) = 0
  AND (i.claimed_until IS NULL OR i.claimed_until < now())
  AND (i.next_attempt_at IS NULL OR i.next_attempt_at <= now() + interval '50 milliseconds')
  AND (i.order_key IS NULL OR (
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
          WHERE p.subscription = i.subscription AND p.order_key = i.order_key)
      AND (i.requeues = 0 OR NOT EXISTS (
          SELECT 1 FROM inbox_messages AS running
          WHERE running.subscription = i.subscription AND running.order_key = i.order_key
            AND running.order_key IS NOT NULL AND running.processed_at IS NULL AND NOT running.stepped_over
            AND running.message_id <> i.message_id AND running.claimed_until > now()))))
RETURNING message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key, originals,
          attempts, requeues, received_at, dead_letter_reason, dead_letter_class
