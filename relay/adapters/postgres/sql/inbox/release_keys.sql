-- Release parked keys by name. Their messages wait for their turn again.
WITH released AS (
    DELETE FROM parked_keys AS p
    USING unnest(%(subscriptions)s::text[], %(keys)s::text[]) AS named (subscription, order_key)
    WHERE p.subscription = named.subscription AND p.order_key = named.order_key
    RETURNING p.subscription, p.order_key)
UPDATE inbox_messages AS i
SET enqueued_at = NULL
FROM released AS r
WHERE i.subscription = r.subscription AND i.order_key = r.order_key
  AND i.order_key IS NOT NULL AND i.processed_at IS NULL AND NOT i.stepped_over
  AND i.enqueued_at = 'infinity'
