-- As claim_message, for several rows at once and under one token. Rows that somebody else has locked are passed
-- over, as nobody may wait for them here: claim_message has the last word on those. Of rows that were tried before
-- only those are taken that again names: the others nobody has asked for yet. The subquery hides from the
-- planner how many ids there are: it would plan for the number each time, which takes longer than the claim.
-- The commit is not waited for: whoever held a claim that a crash undoes has lost its connection too.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), free AS MATERIALIZED (
    SELECT message_id
    FROM inbox_messages
    WHERE message_id = ANY (ARRAY(SELECT unnest(%(ids)s::uuid[])))
      AND (attempts = 0 OR message_id = ANY (%(again)s::uuid[]))
      AND num_nonnulls(processed_at, dead_lettered_at) = 0
      AND (claimed_until IS NULL OR claimed_until < now())
      AND (next_attempt_at IS NULL OR next_attempt_at <= now() + interval '50 milliseconds')
    FOR UPDATE SKIP LOCKED)
UPDATE inbox_messages AS i
SET claim_token = %(token)s,
    claimed_until = now() + %(lease)s,
    attempts = attempts + CASE WHEN dead_letter_reason IS NULL AND attempts < %(max_attempts)s THEN 1 ELSE 0 END,
    dead_letter_reason = CASE WHEN dead_letter_reason IS NULL AND attempts >= %(max_attempts)s
                              THEN %(exhausted)s ELSE dead_letter_reason END,
    dead_letter_class = CASE WHEN dead_letter_reason IS NULL AND attempts >= %(max_attempts)s
                             THEN 'exhausted' ELSE dead_letter_class END
FROM free, relaxed
WHERE i.message_id = free.message_id
RETURNING i.message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key,
          attempts, requeues, dead_letter_reason, dead_letter_class
