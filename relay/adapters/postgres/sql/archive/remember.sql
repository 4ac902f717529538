-- Keep the ids of messages whose rows are in the archive. The newest batch counts, because a restored row was in
-- earlier batches too.
INSERT INTO archived_messages AS a (message_id, batch)
SELECT message_id, %(number)s
FROM unnest(%(ids)s::uuid[]) AS message_id
ON CONFLICT (message_id) DO UPDATE SET batch = greatest(a.batch, excluded.batch)
