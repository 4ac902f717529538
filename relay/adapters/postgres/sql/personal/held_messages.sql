-- Messages with a value under one of these keys, of one block of rows by their ids. The last row of the answer is the last
-- of the block, where the next one begins.
WITH block AS MATERIALIZED (
    SELECT message_id AS id FROM inbox_messages WHERE message_id > %(after)s ORDER BY message_id LIMIT %(block)s
)
SELECT false AS ends, r.message_id AS id, r.received_at AS at, r.event_type AS type, r.subscription, r.subject, r.headers,
       r.body AS body
FROM block JOIN inbox_messages AS r ON r.message_id = block.id
WHERE encode(r.body, 'escape') LIKE ANY (%(keys)s::text[])
UNION ALL
(SELECT true, id, NULL, NULL, NULL, NULL, NULL, NULL FROM block ORDER BY id DESC LIMIT 1)
