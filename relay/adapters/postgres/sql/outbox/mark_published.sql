-- Settle a batch: the one write that an event costs. Stores each PubAck and returns one publication time for all.
-- Attempts never grow past the largest number: no row can make this fail.
WITH marked AS (
    UPDATE outbox_events AS e
    SET published_at = statement_timestamp(),
        publish_attempts = least(e.publish_attempts, 2147483646) + 1,
        publish_error = NULL,
        dead_at = NULL,
        published_stream = ack.stream,
        published_seq = ack.seq,
        published_duplicate = ack.duplicate
    FROM unnest(%(ids)s::uuid[], %(streams)s::text[], %(seqs)s::bigint[], %(duplicates)s::boolean[])
        AS ack (id, stream, seq, duplicate)
    WHERE e.id = ack.id
)
SELECT statement_timestamp()
