-- Incidents that match a filter, the newest first, and how many match in all, counted up to a limit.
-- `reach.sql` says where a short look ends: a pattern of a reason takes long, so times come before it.
-- `from_oldest` turns it round.
WITH found AS MATERIALIZED (
    SELECT d.id
    FROM dead_letters AS d
    WHERE (%(statuses)s::text[] IS NULL
           OR d.status = ANY (%(stored)s::text[])
              AND (d.status <> 'open' OR relay_incident_state(d) = ANY (%(statuses)s::text[])))
      AND (%(recorded_since)s::timestamptz IS NULL OR d.recorded_at >= %(recorded_since)s)
      AND (%(recorded_until)s::timestamptz IS NULL OR d.recorded_at <= %(recorded_until)s)
      -- Older releases recorded a 422 as deterministic.
      AND (%(kinds)s::text[] IS NULL OR d.class = ANY (%(kinds)s::text[])
           OR 'poison' = ANY (%(kinds)s::text[]) AND d.class = 'deterministic' AND d.reason ~ '^HTTP 422')
      AND (NOT %(confirmed)s OR d.class <> 'unconfirmed')
      AND (%(subscription)s::text IS NULL OR d.subscription = %(subscription)s)
      AND (%(event_type)s::text IS NULL OR d.event_type LIKE %(event_type)s)
      AND (%(partition_key)s::text IS NULL
           OR EXISTS (SELECT FROM inbox_messages AS i
                      WHERE i.message_id = d.message_id AND i.partition_key = %(partition_key)s))
      AND (%(reason)s::text IS NULL OR d.reason ~ %(reason)s AND NOT d.reason ~ ANY (%(unless)s::text[]))
      AND (%(since)s::timestamptz IS NULL OR d.recorded_at >= %(since)s)
      AND (%(message_id)s::uuid IS NULL OR d.message_id = %(message_id)s
           OR d.originals ->> 'id' = %(message_name)s::text)
      AND (%(correlation_id)s::uuid IS NULL OR d.correlation_id = %(correlation_id)s)
    ORDER BY d.id DESC
    LIMIT %(counted)s
), page AS MATERIALIZED (
    SELECT id
    FROM found
    WHERE %(before)s::bigint IS NULL OR id < %(before)s
    ORDER BY id DESC
    LIMIT %(limit)s
)
SELECT d.id, d.message_id, d.occurrence, d.recorded_at, d.subscription, d.subject, d.stream, d.stream_seq,
       d.event_type, d.correlation_id, d.causation_id, d.originals, d.class, d.reason, d.attempts,
       relay_incident_state(d) AS status,
       d.snoozed_until, d.closed_at, d.closed_by, d.note, d.correction,
       CASE WHEN d.status = 'requeued' THEN i.processed_at END AS handled_at,
       least(%(counted)s, (SELECT count(*) FROM found)) AS total
FROM page
JOIN dead_letters AS d USING (id)
LEFT JOIN inbox_messages AS i ON i.message_id = d.message_id
ORDER BY d.id DESC
