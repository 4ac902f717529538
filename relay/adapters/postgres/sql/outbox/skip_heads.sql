-- An operator has closed these incidents: the keys that their messages block go on without them.
UPDATE inbox_messages AS i
SET stepped_over = true
FROM dead_letters AS d
WHERE d.id = ANY (%(ids)s::bigint[])
  AND i.message_id = d.message_id
  AND i.order_key IS NOT NULL
  AND i.dead_lettered_at IS NOT NULL
  AND i.processed_at IS NULL
  AND i.requeues = d.occurrence - 1
