-- Fetch claimed events in this order until they have this many bytes, but at least one. Only fetched events are
-- unpacked. An event comes without its payload if that is larger than 64 MiB, which no server takes, or if it is
-- not readable.
WITH RECURSIVE event AS (
    SELECT 0 AS place, 0::bigint AS bytes, NULL::uuid AS id, NULL::text AS payload, NULL::text AS headers,
           NULL::text AS originals
    UNION ALL
    SELECT event.place + 1, event.bytes + next.bytes, next.id,
           CASE WHEN next.bytes <= 67108864 THEN next.payload END,
           CASE WHEN next.bytes <= 67108864 THEN next.headers END,
           CASE WHEN next.bytes <= 67108864 THEN next.originals END
    FROM event, LATERAL (
        SELECT text.*, coalesce(octet_length(text.payload) + octet_length(text.headers), 0)
                       + coalesce(octet_length(text.originals), 0) + text.around AS bytes
        FROM (
            SELECT e.id,
                   CASE WHEN %(readable)s THEN e.payload::text END AS payload,
                   CASE WHEN %(readable)s THEN e.headers::text END AS headers,
                   CASE WHEN %(readable)s THEN e.originals::text END AS originals,
                   octet_length(e.event_type) + octet_length(e.partition_key)
                       + coalesce(octet_length(e.topic), 0) + coalesce(octet_length(e.stream), 0) AS around
            FROM outbox_events AS e
            WHERE e.id = (%(ids)s::uuid[])[event.place + 1]
            OFFSET 0) AS text
        OFFSET 0) AS next
    WHERE event.bytes < %(bytes)s
)
SELECT id::text, e.event_type, e.event_version, event.payload,
       to_char(e.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       e.correlation_id::text, e.causation_id::text, e.partition_key, e.topic, event.headers,
       e.publish_attempts, e.generation, event.originals, e.stream, e.seq
FROM event JOIN outbox_events AS e USING (id)
ORDER BY event.place
