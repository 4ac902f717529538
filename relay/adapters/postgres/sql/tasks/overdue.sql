-- Delivered tasks that their queue should have brought by now: the queue was flushed, or its worker died. They are
-- marked as enqueued, so that the next sweep does not send them again while they wait their turn. The ids are an
-- array for the same reason as in inbox/overdue.
UPDATE task_outbox
SET enqueued_at = now()
WHERE id = ANY (ARRAY(
    SELECT id
    FROM task_outbox
    WHERE status = 'delivered'
      AND queue = %(queue)s
      AND enqueued_at < now() - %(grace)s
      AND (claimed_until IS NULL OR claimed_until < now())
      AND (next_attempt_at IS NULL OR next_attempt_at <= now())
    ORDER BY enqueued_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
RETURNING id, type, queue, priority
