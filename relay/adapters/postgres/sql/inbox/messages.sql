-- Messages that match a filter, the newest first, and how many match in all, counted up to a limit. An index finds
-- those that are processed, and one each the discarded and the expired ones. `mixed`: one index finds all others. Otherwise those with an error are wanted, dead or
-- failing: an index each finds them, so that no waiting message is read and thrown away. Nothing is processed before
-- it is received. `reach.sql` says where a short look ends in each order. `coalesce`: a plan takes a pattern or state
-- that it does not know for one that hardly any row fits. The last step reads each row once more, by its place in the
-- table, as that is cheapest: for groups it reads ten thousand.
-- `from_oldest` turns it round.
WITH matching AS NOT MATERIALIZED (
    SELECT ctid, message_id, received_at, processed_at, dead_lettered_at, last_error, dead_letter_reason,
       dead_letter_class,
       CASE WHEN processed_at IS NOT NULL
                 THEN CASE WHEN dead_letter_class IN ('discarded', 'expired') THEN dead_letter_class ELSE 'processed' END
            WHEN dead_lettered_at IS NOT NULL THEN 'dead'
            WHEN claimed_until >= now() THEN 'running'
            WHEN next_attempt_at = 'infinity' THEN 'held'
            WHEN enqueued_at = 'infinity' THEN 'parked'
            WHEN num_nonnulls(last_error, dead_letter_reason) > 0 THEN 'failing'
            ELSE 'waiting' END AS status
    FROM inbox_messages
    WHERE (%(keys)s::uuid[] IS NULL OR message_id = ANY (%(keys)s::uuid[]))
      AND (%(subscription)s::text IS NULL OR subscription = %(subscription)s)
      AND (%(subject)s::text IS NULL OR coalesce(subject ~ %(subject)s, false))
      AND (%(event_type)s::text IS NULL OR event_type LIKE %(event_type)s)
      AND (%(partition_key)s::text IS NULL OR partition_key = %(partition_key)s)
      AND (%(payload_path)s::text[] IS NULL
           OR coalesce(relay_body_has(body, %(payload_path)s::text[], %(payload_value)s::text), false))
      AND (%(correlation_id)s::uuid IS NULL OR correlation_id = %(correlation_id)s)
      AND (%(since)s::timestamptz IS NULL OR received_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR received_at < %(until)s)
      AND (%(error)s::text IS NULL OR coalesce(coalesce(dead_letter_reason, last_error) ~ %(error)s
           AND NOT coalesce(dead_letter_reason, last_error) ~ ANY (%(unless)s::text[]), false))
), found AS MATERIALIZED (
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE 'processed' = ANY (%(statuses)s::text[]) AND processed_at IS NOT NULL
       AND coalesce(dead_letter_class NOT IN ('discarded', 'expired'), true)
       AND (%(since)s::timestamptz IS NULL OR processed_at >= %(since)s)
       AND (%(processed_since)s::timestamptz IS NULL OR processed_at >= %(processed_since)s)
       AND (%(processed_until)s::timestamptz IS NULL OR processed_at <= %(processed_until)s)
     ORDER BY processed_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE 'discarded' = ANY (%(statuses)s::text[]) AND processed_at IS NOT NULL
       AND dead_letter_class = 'discarded'
     ORDER BY processed_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE 'expired' = ANY (%(statuses)s::text[]) AND processed_at IS NOT NULL
       AND dead_letter_class = 'expired'
     ORDER BY processed_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE %(mixed)s::boolean AND processed_at IS NULL
       AND coalesce(status = ANY (%(statuses)s::text[]), false)
       AND (%(unfinished_since)s::timestamptz IS NULL OR received_at >= %(unfinished_since)s)
       AND (%(unfinished_until)s::timestamptz IS NULL OR received_at <= %(unfinished_until)s)
     ORDER BY received_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE NOT %(mixed)s::boolean AND 'dead' = ANY (%(statuses)s::text[])
       AND processed_at IS NULL AND dead_lettered_at IS NOT NULL
       AND (%(dead_since)s::timestamptz IS NULL OR dead_lettered_at >= %(dead_since)s)
       AND (%(dead_until)s::timestamptz IS NULL OR dead_lettered_at <= %(dead_until)s)
     ORDER BY dead_lettered_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT ctid AS place, message_id, received_at, status
     FROM matching
     WHERE NOT %(mixed)s::boolean AND %(statuses)s::text[] && '{waiting,failing,running,parked,held}'
       AND coalesce(status = ANY (%(statuses)s::text[]), false)
       AND num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL AND dead_lettered_at IS NULL
       AND (%(failing_since)s::timestamptz IS NULL OR received_at >= %(failing_since)s)
       AND (%(failing_until)s::timestamptz IS NULL OR received_at <= %(failing_until)s)
     ORDER BY received_at DESC
     LIMIT %(counted)s)
), page AS MATERIALIZED (
    SELECT place, received_at AS came, message_id AS key, status AS state
    FROM found
    WHERE %(before_id)s::uuid IS NULL
       OR (received_at, message_id) < (%(before_at)s::timestamptz, %(before_id)s::uuid)
    ORDER BY received_at DESC, message_id DESC
    LIMIT %(limit)s
)
SELECT message_id AS id, message_id, state AS status, received_at, subscription, subject, stream, stream_seq,
       event_type, event_version, occurred_at, partition_key, correlation_id::text, causation_id::text, originals,
       attempts, nullif(next_attempt_at, 'infinity') AS next_attempt_at, processed_at, dead_lettered_at, dead_letter_class AS class, requeues,
       nullif(expires_at, 'infinity') AS expires_at,
       coalesce(dead_letter_reason, last_error) AS last_error,
       least(%(counted)s, (SELECT count(*) FROM found)) AS total
FROM page JOIN inbox_messages AS i ON i.ctid = page.place
ORDER BY came DESC, key DESC
