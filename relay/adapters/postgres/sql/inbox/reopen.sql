-- Let discarded or expired messages go on, at their places: what they were before they were given up, and due for the next sweep.
-- In an ordered subscription the next of the key may run meanwhile. So there the message counts as requeued: a claim
-- then waits for the other one's end.
UPDATE inbox_messages AS i
SET processed_at = NULL,
    dead_letter_class = NULL,
    dead_letter_reason = NULL,
    next_attempt_at = CASE WHEN last_error IS NOT NULL THEN clock_timestamp() END,
    enqueued_at = CASE
        WHEN order_key IS NULL THEN 'epoch'
        WHEN EXISTS (
            SELECT FROM parked_keys AS p
            WHERE p.subscription = i.subscription AND p.order_key = i.order_key) THEN 'infinity'::timestamptz
    END,
    requeues = requeues + (order_key IS NOT NULL)::int
WHERE message_id = ANY (%(ids)s::uuid[])
  AND processed_at IS NOT NULL
  AND dead_letter_class IN ('discarded', 'expired')
