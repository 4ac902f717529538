-- As inbox/claim, for several rows at once and under one token. This statement must not wait, so it skips rows
-- that another session has locked; inbox/claim decides on those. A row that was tried before is claimed only if
-- its id is in ``again``: the others are not asked for yet. The subquery hides from the planner how many ids there
-- are. Otherwise it would make a new plan for each number, which takes longer than the claim. The claim does not
-- wait for the disk: a crash that undoes it also disconnects its worker.
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
    attempts = attempts + CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                                 OR dead_letter_reason IS NOT NULL THEN 0 ELSE 1 END,
    dead_letter_reason = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                              THEN %(exhausted)s ELSE dead_letter_reason END,
    dead_letter_class = CASE WHEN relay_exhausted(dead_letter_reason, attempts, %(max_attempts)s)
                             THEN 'exhausted' ELSE dead_letter_class END
FROM free, relaxed
WHERE i.message_id = free.message_id
RETURNING i.message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key, originals,
          attempts, requeues, received_at, dead_letter_reason, dead_letter_class
