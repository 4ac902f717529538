-- As inbox/claim, for several rows at once and under one token. This statement must not wait, so it skips rows that
-- another session has locked; inbox/claim decides on those. A row that was tried before is claimed only if its id is
-- in ``again``. It may have killed its worker, so it is handled alone and takes no others with it. With ``alone``, the
-- ids of such rows are returned too, without a token.
-- Subqueries hide values from the planner, and how many ids there are. Otherwise it would make a new plan each time,
-- which takes longer than the claim. The claim does not wait for the disk: see inbox/claim.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), due AS MATERIALIZED (
    SELECT i.message_id, i.attempts > 0 AND i.message_id <> ALL (%(again)s::uuid[]) AS tried
    FROM inbox_messages AS i
    WHERE i.message_id = ANY (ARRAY(SELECT unnest(%(ids)s::uuid[])))
      AND ((SELECT %(alone)s::boolean) OR i.attempts = 0 OR i.message_id = ANY (%(again)s::uuid[]))
      AND num_nonnulls(i.processed_at, i.dead_lettered_at) = 0
      AND relay_is_free(i.claimed_until, i.next_attempt_at, interval '50 milliseconds')
      AND (i.dead_letter_reason IS NOT NULL OR i.expires_at <= now() OR EXISTS (SELECT FROM relay_may_call(i.message_id, i.subscription)))
--+ in_turn
    FOR UPDATE SKIP LOCKED),
taken AS (
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
    FROM due, relaxed
    WHERE i.message_id = due.message_id AND NOT due.tried
    RETURNING i.message_id, subject, subscription, stream, stream_seq, ack_subject, body, headers,
              event_type, event_version, occurred_at, partition_key, correlation_id, causation_id, order_key, originals, source_id,
              attempts, requeues, received_at, dead_letter_reason, dead_letter_class,
              EXISTS (SELECT FROM handler_circuits AS c WHERE c.probe_id = i.message_id) AS probe)
SELECT * FROM due LEFT JOIN taken USING (message_id)
