-- Let messages go on that a limit has put off: they are as due as when they came. Those in back-off stay so.
UPDATE inbox_messages
SET enqueued_at = received_at
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM inbox_messages
    WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(name)s
      AND enqueued_at > clock_timestamp() AND enqueued_at < 'infinity' AND next_attempt_at IS NULL
    ORDER BY enqueued_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
