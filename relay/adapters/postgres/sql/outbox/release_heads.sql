-- Release the keys that these incidents parked. Their messages wait for their turn again.
WITH released AS (
    DELETE FROM parked_keys AS p
    USING dead_letters AS d
    WHERE d.id = ANY (%(ids)s::bigint[]) AND p.message_id = d.message_id
    RETURNING p.subscription, p.order_key)
UPDATE inbox_messages AS i
SET enqueued_at = NULL
FROM released AS r
WHERE i.subscription = r.subscription AND i.order_key = r.order_key
  AND i.order_key IS NOT NULL AND i.processed_at IS NULL AND NOT i.stepped_over
  AND i.enqueued_at = 'infinity' AND i.next_attempt_at IS DISTINCT FROM 'infinity'
