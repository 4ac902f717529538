-- Published events that are old enough for the archive, the oldest first. They stay locked until they are deleted.
-- A replayed event counts as unpublished while it waits. Rows that an operator has locked stay for the next batch.
SELECT id, published_at, row_to_json(e)::text
FROM outbox_events AS e
WHERE published_at < now() - %(after)s::interval
  AND (published_stream IS NULL OR published_stream = ANY (%(streams)s::text[]))
ORDER BY published_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
