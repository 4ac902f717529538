-- Delete the rows that were read back from the archive, and keep which messages they are. The transaction holds these
-- rows locked. The newest batch counts, because a restored row was in earlier batches too.
WITH gone AS (
    DELETE FROM inbox_messages
    WHERE message_id = ANY (%(ids)s::uuid[])
    RETURNING message_id, subscription, source_id)
INSERT INTO archived_messages AS a (message_id, batch, subscription, source_id)
SELECT message_id, %(number)s, subscription, source_id
FROM gone
ON CONFLICT (message_id) DO UPDATE
    SET batch = greatest(a.batch, excluded.batch), subscription = excluded.subscription
