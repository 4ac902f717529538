-- The message of a subscription with a limit that has waited longest for room: it may be tried now.
UPDATE inbox_messages
SET enqueued_at = clock_timestamp()
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM (
        SELECT message_id, received_at, claimed_until, next_attempt_at
        FROM inbox_messages
        WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(subscription)s
          AND enqueued_at > clock_timestamp() AND enqueued_at < 'infinity'
        ORDER BY enqueued_at
        LIMIT 5000) AS later
    WHERE next_attempt_at IS NULL AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
    ORDER BY received_at
    LIMIT 1))
RETURNING message_id
