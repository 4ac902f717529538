-- Claim due tasks of one queue, those that go first first, and mark them as delivered: they are once this commits.
-- Immediate and delayed ones are read through an index each, so that tasks of next week cost nothing today. An
-- array for the reason that overdue_messages gives. Whoever is paused before the commit loses the rows after five
-- seconds; the commit is not waited for. What is lost either way is delivered twice.
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
