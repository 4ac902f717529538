-- Parked keys, the longest parked first: which failed message parked each, and how many messages wait behind it.
SELECT p.subscription, p.order_key AS key, p.parked_at AS since, p.message_id AS head, p.reason,
       (SELECT i.originals FROM inbox_messages AS i WHERE i.message_id = p.message_id) AS originals,
       (SELECT count(*)
        FROM inbox_messages AS i
        WHERE i.subscription = p.subscription AND i.order_key = p.order_key
          AND i.order_key IS NOT NULL AND i.processed_at IS NULL AND NOT i.stepped_over
          AND i.dead_lettered_at IS NULL) AS waiting
FROM parked_keys AS p
WHERE %(subscription)s::text IS NULL OR p.subscription = %(subscription)s
ORDER BY p.parked_at, p.subscription, p.order_key
LIMIT %(limit)s OFFSET %(offset)s
