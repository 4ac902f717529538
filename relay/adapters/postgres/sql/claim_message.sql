-- Take one inbox row under a token and count the attempt. A condemned row (its dead letter is not
-- stored yet) is taken without counting: its handler is not called again. So is one whose attempts are
-- spent although none was answered: it would kill the next worker too. What is not finished is counted instead
-- of asked for by IS NULL, here and wherever a row is known by its id: PostgreSQL might otherwise read the whole
-- index of what waits, which it takes for empty when there was nothing in it last time it looked.
-- The commit is not waited for: whoever held a claim that a crash undoes has lost its connection too.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages
SET claim_token = %(token)s,
    claimed_until = now() + %(lease)s,
    attempts = attempts + CASE WHEN dead_letter_reason IS NULL AND attempts < %(max_attempts)s THEN 1 ELSE 0 END,
    dead_letter_reason = CASE WHEN dead_letter_reason IS NULL AND attempts >= %(max_attempts)s
                              THEN %(exhausted)s ELSE dead_letter_reason END,
    dead_letter_class = CASE WHEN dead_letter_reason IS NULL AND attempts >= %(max_attempts)s
                             THEN 'exhausted' ELSE dead_letter_class END
FROM relaxed
WHERE message_id = %(message_id)s
  AND num_nonnulls(processed_at, dead_lettered_at) = 0
  AND (claimed_until IS NULL OR claimed_until < now())
  AND (next_attempt_at IS NULL OR next_attempt_at <= now() + interval '50 milliseconds')
RETURNING message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key,
          attempts, requeues, received_at, dead_letter_reason, dead_letter_class
