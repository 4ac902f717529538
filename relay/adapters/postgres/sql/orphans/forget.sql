-- Forget what was noted in a range of a stream and is no orphan any more, because the outbox knows it, and all that is
-- outside of the stream.
DELETE FROM orphaned_events
WHERE stream = %(stream)s
  AND reported_at IS NULL
  AND (stream_seq NOT BETWEEN %(begin)s AND %(end)s
       OR (stream_seq BETWEEN %(first)s AND %(last)s AND event_id <> ALL (%(ids)s::uuid[])))
