-- Claim due tasks of one queue, in the order in which they should run, and mark them as delivered. The delivery
-- counts when this commits. Immediate and delayed tasks have an index each, so next week's tasks cost nothing
-- today. The ids are an array for the same reason as in inbox/overdue. A process that pauses before the commit
-- loses the rows after five seconds. This does not wait for the disk. Tasks that are lost in either way are
-- delivered twice.
WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true),
           set_config('idle_in_transaction_session_timeout', '5s', true)),
due AS MATERIALIZED (
    SELECT id
    FROM task_outbox
    WHERE id IN (
            (SELECT id FROM task_outbox
             WHERE status = 'pending' AND available_at IS NULL AND queue = %(queue)s
             ORDER BY priority, seq LIMIT %(limit)s)
            UNION ALL
            (SELECT id FROM task_outbox
             WHERE status = 'pending' AND available_at IS NOT NULL AND available_at <= now() AND queue = %(queue)s
             ORDER BY available_at LIMIT %(limit)s))
      AND status = 'pending'
    ORDER BY priority, seq
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)
UPDATE task_outbox
SET status = 'delivered', delivered_at = clock_timestamp(), enqueued_at = clock_timestamp()
FROM relaxed
WHERE id = ANY (ARRAY(SELECT id FROM due))
RETURNING priority, seq, id, type, queue
