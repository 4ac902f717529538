-- Tasks by their ids or correlations; for chains without correlation also by their cause.
SELECT id, type, queue, CASE WHEN status = 'delivered' AND claimed_until >= now() THEN 'running'
            WHEN status = 'cancelled' AND expires_at <= finished_at THEN 'expired' ELSE status END AS status,
       created_at, available_at, started_at, finished_at, next_attempt_at, attempts, last_error, correlation_id,
       causation_id, originals,
       relay_attempts_in_short(attempt_log) AS attempt_log, claim_token, left(metadata ->> 'traceparent', 200) AS traceparent
FROM task_outbox
WHERE id IN (
    SELECT id FROM task_outbox WHERE id = ANY (%(ids)s::uuid[])
    UNION ALL
    SELECT id FROM task_outbox WHERE correlation_id = ANY (%(correlations)s::uuid[])
    UNION ALL
    SELECT id FROM task_outbox WHERE causation_id = ANY (%(causes)s::uuid[]))
ORDER BY created_at, seq
LIMIT %(limit)s
