-- Sequences that a consumer received and that never reached the inbox: their worker died in between. The range is
-- what JetStream has not seen acknowledged, cut to the latest 100,000.
SELECT seq
FROM generate_series(greatest(%(after)s::bigint + 1, %(upto)s::bigint - 99999), %(upto)s::bigint) AS seq
WHERE NOT EXISTS (
    SELECT 1
    FROM inbox_messages
    WHERE stream = %(stream)s AND stream_seq = seq AND subscription = %(subscription)s)
ORDER BY seq
