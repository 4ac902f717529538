-- Fetch claimed events in this order until they have this many bytes, but at least one. Only fetched events are
-- unpacked. An event comes without its payload if that is larger than any that the server takes, or if it is not
-- readable. It then takes no bytes.
--
-- A number of twelve bytes may have a hundred thousand digits. A payload with one of over 400, which no client reads, is
-- not unpacked: an integer outside of 64 bits stands for it. To look for them takes six times as long as to unpack, so
-- that is done for what is stored as small, and for all after an event that could not be unpacked.
WITH RECURSIVE event AS (
    SELECT 0 AS place, 0::bigint AS bytes, NULL::uuid AS id, NULL::text AS payload, NULL::text AS headers,
           NULL::text AS originals
    UNION ALL
    SELECT event.place + 1, event.bytes + CASE WHEN next.bytes <= %(largest)s THEN next.bytes ELSE 0 END, next.id,
           CASE WHEN next.bytes <= %(largest)s THEN next.payload END,
           CASE WHEN next.bytes <= %(largest)s THEN next.headers END,
           CASE WHEN next.bytes <= %(largest)s THEN next.originals END
    FROM event, LATERAL (
        SELECT text.*, coalesce(octet_length(text.payload) + octet_length(text.headers), 0)
                       + coalesce(octet_length(text.originals), 0) + text.around AS bytes
        FROM (
            SELECT e.id,
                   CASE WHEN NOT %(readable)s THEN NULL WHEN number.long THEN '1' || repeat('0', 20)
                        ELSE e.payload::text END AS payload,
                   CASE WHEN NOT %(readable)s THEN NULL WHEN number.long THEN '{}' ELSE e.headers::text END AS headers,
                   CASE WHEN %(readable)s AND NOT number.long THEN e.originals::text END AS originals,
                   octet_length(e.event_type) + octet_length(e.partition_key)
                       + coalesce(octet_length(e.topic), 0) + coalesce(octet_length(e.stream), 0) AS around
            FROM outbox_events AS e, LATERAL (
                SELECT (%(wary)s OR (
                           pg_column_size(e.payload) + pg_column_size(e.headers)
                               + coalesce(pg_column_size(e.originals), 0) <= 2000
                           AND pg_column_compression(e.payload) IS NULL
                           AND pg_column_compression(e.headers) IS NULL))
                   AND NOT relay_unpacks(jsonb_build_array(e.payload, e.headers, e.originals)) AS long
                OFFSET 0) AS number
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
