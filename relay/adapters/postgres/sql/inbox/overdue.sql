-- Rows that a queue should have delivered by now: the queue was flushed, or its worker died. With `failed`, only those
-- that have failed, or only the others: so neither kind has to wait for thousands of the other. They are marked as
-- enqueued, so that the next sweep does not send them again while they wait their turn. While the handler is away,
-- there are none: its probe is sent by itself. The ids are an array, so that the rows are found by their ids. For a
-- few thousand ids, a join would read the whole table.
UPDATE inbox_messages
SET enqueued_at = now()
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM inbox_messages
    WHERE processed_at IS NULL
      AND dead_lettered_at IS NULL
      AND enqueued_at < now() - %(grace)s
      AND subscription = %(subscription)s
      AND relay_is_free(claimed_until, next_attempt_at, interval '0')
      AND EXISTS (SELECT FROM relay_may_call(NULL, %(subscription)s))
      AND (%(failed)s::boolean IS NULL OR (next_attempt_at IS NOT NULL) = %(failed)s::boolean)
    ORDER BY enqueued_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
RETURNING message_id
