-- Fetch claimed events in this order until they have this many bytes, but at least one. Only fetched events are
-- unpacked. An event comes without its payload if that is larger than any that the server takes, or if it is not
-- readable. It then takes no bytes.
--
-- The bytes so far are in a setting of the transaction, so rows go to the client as they are read. A sum over rows,
-- by a window or by recursion, would keep and copy all texts. Each step needs the one before, so that the
-- planner takes them in this order.
--
-- A number of twelve bytes may have a hundred thousand digits. A payload with one of over 400, which no client reads, is
-- not unpacked: an integer outside of 64 bits stands for it. To look for them takes six times as long as to unpack, so
-- that is done for what is stored as small, and for all after an event that could not be unpacked.
--
-- A payload of more bytes than are sent (kept) stays here: its size and its digest come instead of it.
SELECT event.id::text, event.event_type, event.event_version, CASE WHEN event.fits AND NOT event.stays THEN event.payload END,
       to_char(event.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       event.correlation_id::text, event.causation_id::text, event.partition_key, event.topic,
       CASE WHEN event.fits THEN event.headers END, event.publish_attempts, event.generation,
       CASE WHEN event.fits THEN event.originals END, event.stream, event.seq,
       to_char(event.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       CASE WHEN event.fits AND event.stays THEN octet_length(convert_to(event.payload, 'UTF8')) END,
       CASE WHEN event.fits AND event.stays THEN encode(sha256(convert_to(event.payload, 'UTF8')), 'hex') END
FROM set_config('relay.fetched_bytes', '0', true) AS start (bytes),
LATERAL unnest(CASE start.bytes WHEN '0' THEN %(ids)s::uuid[] END) WITH ORDINALITY AS wanted (id, place),
LATERAL (
    SELECT wanted.id
    WHERE current_setting('relay.fetched_bytes')::bigint < CASE WHEN wanted.place > 0 THEN %(bytes)s END
    OFFSET 0) AS next,
LATERAL (
    SELECT text.*, coalesce(octet_length(text.payload) + octet_length(text.headers), 0)
                   + coalesce(octet_length(text.originals), 0) + text.around AS bytes
    FROM (
        SELECT e.id, e.event_type, e.event_version, e.occurred_at, e.correlation_id, e.causation_id, e.partition_key,
               e.topic, e.publish_attempts, e.generation, e.stream, e.seq, e.expires_at,
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
        WHERE e.id = next.id
        OFFSET 0) AS text
    OFFSET 0) AS unpacked,
LATERAL (
    SELECT unpacked.*,
           CASE WHEN kept.stays THEN octet_length(unpacked.payload) <= %(most)s ELSE unpacked.bytes <= %(largest)s END AS fits,
           kept.stays
    FROM (SELECT coalesce(octet_length(unpacked.payload) > %(kept)s::int, false) AS stays) AS kept
    OFFSET 0) AS event,
LATERAL set_config(
    'relay.fetched_bytes',
    (current_setting('relay.fetched_bytes')::bigint + CASE WHEN event.fits THEN event.bytes ELSE 0 END)::text,
    true) AS noted
