-- Let messages go on that a limit has put off: they are as due as when they came. Those in back-off stay so, also if a
-- limit of their key has put them off since.
UPDATE inbox_messages
SET enqueued_at = received_at, next_attempt_at = NULL
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(name)s
      AND enqueued_at > clock_timestamp() AND enqueued_at < 'infinity' AND (next_attempt_at IS NULL OR attempts = 0 AND last_error IS NULL AND next_attempt_at < 'infinity')
    ORDER BY enqueued_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
