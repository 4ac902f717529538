-- For a subscription that is no longer ordered: messages that waited for their turn or were parked become due like
-- any other. If it becomes ordered again, stream and inbox are compared before anything runs.
WITH unparked AS (
    DELETE FROM parked_keys WHERE subscription = %(subscription)s),
unmarked AS (
    DELETE FROM inbox_watermarks WHERE subscription = %(subscription)s)
UPDATE inbox_messages
SET enqueued_at = 'epoch'
WHERE subscription = %(subscription)s
  AND order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over
  AND dead_lettered_at IS NULL AND next_attempt_at IS DISTINCT FROM 'infinity'
  AND (enqueued_at IS NULL OR enqueued_at = 'infinity')
