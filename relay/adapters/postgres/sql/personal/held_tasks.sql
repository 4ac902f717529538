-- Tasks with a value under one of these keys, of one block of rows by their ids. The last row of the answer is the last
-- of the block, where the next one begins.
WITH block AS MATERIALIZED (
    SELECT id AS id FROM task_outbox WHERE id > %(after)s ORDER BY id LIMIT %(block)s
)
SELECT false AS ends, r.id AS id, r.created_at AS at, r.type AS type, NULL::text AS subscription, NULL::text AS subject, NULL::jsonb AS headers,
       convert_to(r.payload::text, 'UTF8') AS body
FROM block JOIN task_outbox AS r ON r.id = block.id
WHERE r.payload::text LIKE ANY (%(keys)s::text[])
UNION ALL
(SELECT true, id, NULL, NULL, NULL, NULL, NULL, NULL FROM block ORDER BY id DESC LIMIT 1)
