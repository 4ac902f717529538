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
  AND relay_holds_key(i.order_key, i.processed_at, i.stepped_over)
  AND i.enqueued_at = 'infinity' AND i.next_attempt_at IS DISTINCT FROM 'infinity'
