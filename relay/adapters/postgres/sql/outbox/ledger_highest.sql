-- The highest sequence that a PubAck ever gave for this stream, and the time of this query.
SELECT coalesce(max(published_seq), 0), clock_timestamp()
FROM outbox_events
WHERE published_stream = %(stream)s AND published_seq IS NOT NULL
