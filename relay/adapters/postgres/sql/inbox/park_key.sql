-- Park the key of a dead message, with all messages that wait behind it.
WITH parked AS (
    INSERT INTO parked_keys (subscription, order_key, parked_at, message_id, reason)
    SELECT subscription, order_key, clock_timestamp(), message_id, dead_letter_reason
    FROM inbox_messages
    WHERE message_id = %(message_id)s AND order_key IS NOT NULL
    ON CONFLICT (subscription, order_key) DO UPDATE
        SET message_id = excluded.message_id, reason = excluded.reason
    RETURNING subscription, order_key)
UPDATE inbox_messages AS i
SET enqueued_at = 'infinity'
FROM parked AS p
WHERE i.subscription = p.subscription AND i.order_key = p.order_key
  AND relay_holds_key(i.order_key, i.processed_at, i.stepped_over)
  AND i.dead_lettered_at IS NULL
