-- Claim one inbox row under a token and count the attempt. The rules are functions: schema/inbox_rules.sql.
-- num_nonnulls(...) = 0 replaces IS NULL here and wherever a row is found by its id. With IS NULL the planner
-- might read the whole partial index of unfinished rows, if its statistics say that this index is empty.
-- A message whose time is over is claimed as a rejected one is: not counted, and without a call.
-- The claim does not wait for the disk: a crash that undoes it also disconnects its worker.
-- While the handler is away, only the probe is claimed, and what needs no call: relay_may_call.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE inbox_messages AS i
SET claim_token = %(token)s,
    claimed_until = now() + %(lease)s,
    (attempts, dead_letter_reason, dead_letter_class) = (
        SELECT counted, reason, class
        FROM relay_attempt(
            i.attempts,
            coalesce(i.dead_letter_reason, CASE WHEN i.expires_at <= now() THEN %(expired)s END),
            coalesce(i.dead_letter_class, CASE WHEN i.expires_at <= now() THEN 'deterministic' END),
            %(max_attempts)s, %(exhausted)s))
FROM relaxed
WHERE i.message_id = %(message_id)s
  AND num_nonnulls(i.processed_at, i.dead_lettered_at) = 0
  AND relay_is_free(i.claimed_until, i.next_attempt_at, interval '50 milliseconds')
  AND (i.dead_letter_reason IS NOT NULL OR i.expires_at <= now() OR EXISTS (SELECT FROM relay_may_call(i.message_id, i.subscription)))
--+ in_turn
RETURNING message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
          event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key, originals, source_id,
          attempts, requeues, received_at, dead_letter_reason, dead_letter_class,
          EXISTS (SELECT FROM handler_circuits AS c WHERE c.probe_id = i.message_id) AS probe
