-- The first orphan of a stream that nobody has decided about.
SELECT min(stream_seq) FROM orphaned_events WHERE stream = %(stream)s AND reported_at IS NULL
