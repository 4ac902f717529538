-- Events that were acknowledged with a sequence beyond the stream's last message: the stream has lost its last
-- messages. Stale ones count for nothing.
SELECT count(*), (array_agg(coalesce(originals ->> 'id', id::text) ORDER BY seq))[1:20]
FROM outbox_events
WHERE published_stream = %(stream)s
  AND published_seq > %(last_seq)s
  AND published_at < %(before)s
  AND coalesce(expires_at > clock_timestamp() + interval '1 minute', true)
  AND NOT EXISTS (
      SELECT FROM erased_messages AS m WHERE (m.stream, m.stream_seq, m.event_id) = (%(stream)s, published_seq, id))
  AND (%(max_age)s::interval IS NULL OR published_at > clock_timestamp() - %(max_age)s::interval)
