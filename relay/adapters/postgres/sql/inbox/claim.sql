-- Claim one inbox row under a token and count the attempt. A rejected row (its dead letter is not stored yet) is
-- claimed without counting: its handler is not called again. The same holds for a row that has used up its
-- attempts without a result: it would kill the next worker too.
-- num_nonnulls(...) = 0 replaces IS NULL here and wherever a row is found by its id. With IS NULL the planner
-- might read the whole partial index of unfinished rows, if its statistics say that this index is empty.
-- The claim does not wait for the disk: a crash that undoes it also disconnects its worker.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages
SET claim_token = %(token)s,
    claimed_until = now() + %(lease)s,
    attempts = attempts + CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                                 OR dead_letter_reason IS NOT NULL THEN 0 ELSE 1 END,
    dead_letter_reason = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                              THEN %(exhausted)s ELSE dead_letter_reason END,
    dead_letter_class = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                             THEN 'exhausted' ELSE dead_letter_class END
FROM relaxed
WHERE message_id = %(message_id)s
  AND num_nonnulls(processed_at, dead_lettered_at) = 0
  AND (claimed_until IS NULL OR claimed_until < now())
  AND (next_attempt_at IS NULL OR next_attempt_at <= now() + interval '50 milliseconds')
RETURNING message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key, originals,
          attempts, requeues, received_at, dead_letter_reason, dead_letter_class
