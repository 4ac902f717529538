-- A task of a key has ended: the first waiting task of the key is due now.
UPDATE task_outbox
SET next_attempt_at = clock_timestamp(), enqueued_at = clock_timestamp()
WHERE id = (
    SELECT id
    FROM task_outbox
    WHERE concurrency_key = %(key)s AND waits_for = 'room' AND status = 'delivered'
      AND next_attempt_at > clock_timestamp()
    ORDER BY priority, seq
    LIMIT 1
    FOR UPDATE SKIP LOCKED)
RETURNING id, type, queue, priority
