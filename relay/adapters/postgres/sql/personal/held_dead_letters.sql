-- Dead letters with a value under one of these keys, of one block of rows by their ids. The last row of the answer is the last
-- of the block, where the next one begins.
WITH block AS MATERIALIZED (
    SELECT id AS id FROM dead_letters WHERE id > %(after)s ORDER BY id LIMIT %(block)s
)
SELECT false AS ends, r.id AS id, r.recorded_at AS at, r.event_type AS type, r.subscription, r.subject, r.headers,
       r.original AS body
FROM block JOIN dead_letters AS r ON r.id = block.id
WHERE encode(r.original, 'escape') LIKE ANY (%(keys)s::text[])
UNION ALL
(SELECT true, id, NULL, NULL, NULL, NULL, NULL, NULL FROM block ORDER BY id DESC LIMIT 1)
