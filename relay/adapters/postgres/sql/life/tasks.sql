-- Tasks by their ids or correlations; for chains without correlation also by their cause. Nothing ends before its
-- cause was there. Clocks differ by less than an hour.
SELECT id, type, queue, CASE WHEN status = 'delivered' AND claimed_until >= now() THEN 'running' ELSE status END AS status,
       created_at, available_at, started_at, finished_at, next_attempt_at, attempts, last_error, correlation_id,
       causation_id, originals, left(metadata ->> 'traceparent', 200) AS traceparent
FROM task_outbox
WHERE id IN (
    SELECT id FROM task_outbox WHERE id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT id FROM task_outbox WHERE correlation_id = ANY (%(correlations)s::uuid[])
    UNION ALL
    SELECT id FROM task_outbox
    WHERE cardinality(%(causes)s::uuid[]) > 0 AND causation_id = ANY (%(causes)s::uuid[])
      AND status = 'pending' AND available_at IS NULL
    UNION ALL
    SELECT id FROM task_outbox
    WHERE cardinality(%(causes)s::uuid[]) > 0 AND causation_id = ANY (%(causes)s::uuid[])
      AND status = 'pending' AND available_at IS NOT NULL
    UNION ALL
    SELECT id FROM task_outbox
    WHERE cardinality(%(causes)s::uuid[]) > 0 AND causation_id = ANY (%(causes)s::uuid[]) AND status = 'delivered'
    UNION ALL
    SELECT id FROM task_outbox
    WHERE cardinality(%(causes)s::uuid[]) > 0 AND causation_id = ANY (%(causes)s::uuid[])
      AND status NOT IN ('pending', 'delivered')
      AND (%(caused_since)s::timestamptz IS NULL OR finished_at >= %(caused_since)s - interval '1 hour'))
ORDER BY created_at, seq
LIMIT %(limit)s
