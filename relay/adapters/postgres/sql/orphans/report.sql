-- Mark orphans as reported to the consumers.
INSERT INTO orphaned_events AS o (event_id, stream, stream_seq, stored_at, reported_at)
SELECT id, stream, seq, at, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(streams)s::text[], %(seqs)s::bigint[], %(times)s::timestamptz[])
    AS it (id, stream, seq, at)
ON CONFLICT (event_id) DO UPDATE SET reported_at = excluded.reported_at WHERE o.reported_at IS NULL
RETURNING event_id
