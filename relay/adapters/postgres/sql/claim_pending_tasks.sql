-- Claim due tasks of one queue, those that go first first. Immediate and delayed ones are read through an index
-- each, so that tasks of next week cost nothing today.
SELECT id, type, queue, priority
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
FOR UPDATE SKIP LOCKED
