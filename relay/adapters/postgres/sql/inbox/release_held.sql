-- Let held messages go on, for the next sweep: in an ordered subscription in their turn, or behind their parked key.
UPDATE inbox_messages AS i
SET next_attempt_at = CASE WHEN last_error IS NOT NULL THEN clock_timestamp() END,
    enqueued_at = CASE
        WHEN order_key IS NULL THEN 'epoch'
        WHEN EXISTS (
            SELECT FROM parked_keys AS p
            WHERE p.subscription = i.subscription AND p.order_key = i.order_key) THEN 'infinity'::timestamptz
    END
WHERE message_id = ANY (%(ids)s::uuid[])
  AND next_attempt_at = 'infinity'
