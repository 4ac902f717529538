-- Have processed messages of a subscription handled again, those that were processed before the replay was asked for:
-- so a step that is done twice repeats nothing twice. What is held, dead, discarded or waits stays as it is.
UPDATE inbox_messages
SET processed_at = NULL,
    attempts = 0,
    last_error = NULL,
    enqueued_at = CASE WHEN order_key IS NULL THEN 'epoch'::timestamptz END,
    let_go_at = coalesce(let_go_at, clock_timestamp()),
    requeues = requeues + 1
WHERE message_id = ANY (ARRAY(
        SELECT message_id FROM inbox_messages
        WHERE message_id = ANY (%(ids)s::uuid[]) AND source_id IS NULL
        UNION ALL
        SELECT message_id FROM inbox_messages WHERE source_id = ANY (%(ids)s::uuid[])))
  AND (subscription IS NULL OR subscription = %(subscription)s)
  AND processed_at < %(asked_at)s
  AND dead_letter_class IS NULL
RETURNING message_id
