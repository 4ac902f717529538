-- A page of the PubAck ledger: which event the stream should hold at which sequence. It may have removed one that is
-- stale, or soon will be.
SELECT id, published_seq, originals ->> 'id'
FROM outbox_events
WHERE published_stream = %(stream)s
  AND published_seq BETWEEN %(first)s AND %(last)s
  AND published_at < %(before)s
  AND coalesce(expires_at > clock_timestamp() + interval '1 minute', true)
  AND (%(max_age)s::interval IS NULL OR published_at > clock_timestamp() - %(max_age)s::interval)
ORDER BY published_seq
LIMIT %(limit)s
