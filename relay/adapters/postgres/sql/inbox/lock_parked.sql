-- Lock parked keys, so that one operator at a time decides on each, and read the state of their heads.
SELECT p.subscription, p.order_key AS key,
       i.dead_lettered_at IS NOT NULL AND i.processed_at IS NULL AND NOT i.stepped_over AS dead,
       i.event_type IS NOT NULL AS readable,
       (SELECT d.id
        FROM dead_letters AS d
        WHERE d.message_id = p.message_id AND d.occurrence = i.requeues + 1) AS incident
FROM parked_keys AS p
LEFT JOIN inbox_messages AS i ON i.message_id = p.message_id
WHERE (%(keys)s::text[] IS NULL OR p.order_key = ANY (%(keys)s::text[]))
  AND (%(subscription)s::text IS NULL OR p.subscription = %(subscription)s)
  AND (%(counted)s::text[] IS NULL OR p.subscription || '/' || p.order_key = ANY (%(counted)s::text[]))
ORDER BY p.parked_at, p.subscription, p.order_key
FOR UPDATE OF p
