-- Published events that have had their time, the oldest first, locked until they are deleted. An event that is
-- replayed is not published while it waits. What an operator holds is left for the next batch.
SELECT id, published_at, row_to_json(e)::text
FROM outbox_events AS e
WHERE published_at < now() - %(after)s::interval
  AND (published_stream IS NULL OR published_stream = ANY (%(streams)s::text[]))
ORDER BY published_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
