-- Note orphans. One that is noted already, at this place or at an earlier one, stays as it is.
INSERT INTO orphaned_events (event_id, stream, stream_seq, stored_at)
SELECT * FROM unnest(%(ids)s::uuid[], %(streams)s::text[], %(seqs)s::bigint[], %(times)s::timestamptz[])
ON CONFLICT DO NOTHING
RETURNING event_id
