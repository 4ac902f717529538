-- One message of the inbox with its body, for an operator.
SELECT message_id AS id, message_id,
       CASE WHEN processed_at IS NOT NULL
                 THEN CASE WHEN dead_letter_class IN ('discarded', 'expired') THEN dead_letter_class ELSE 'processed' END
            WHEN dead_lettered_at IS NOT NULL THEN 'dead'
            WHEN claimed_until >= now() THEN 'running'
            WHEN next_attempt_at = 'infinity' THEN 'held'
            WHEN enqueued_at = 'infinity' THEN 'parked'
            WHEN num_nonnulls(last_error, dead_letter_reason) > 0 THEN 'failing'
            ELSE 'waiting' END AS status,
       received_at, subscription, subject, stream, stream_seq, event_type, event_version, occurred_at, partition_key,
       correlation_id::text, causation_id::text, originals, attempts, nullif(next_attempt_at, 'infinity') AS next_attempt_at, claimed_until, processed_at,
       dead_lettered_at, dead_letter_class AS class, requeues, nullif(expires_at, 'infinity') AS expires_at, order_key, stepped_over,
       attempt_log, claim_token,
       coalesce(dead_letter_reason, last_error) AS last_error, headers,
       (SELECT string_agg(format('%%s of %%s', o.message_id, o.subscription), ', ' ORDER BY o.subscription)
        FROM inbox_messages AS o
        WHERE (o.message_id = coalesce(m.source_id, m.message_id) OR o.source_id = coalesce(m.source_id, m.message_id))
          AND o.message_id <> m.message_id) AS others,
       body
FROM inbox_messages AS m
WHERE message_id = %(id)s
