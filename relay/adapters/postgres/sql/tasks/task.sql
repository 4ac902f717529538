-- One task with its payload, for an operator.
SELECT id, type, queue, priority,
       CASE WHEN status = 'delivered' AND claimed_until >= now() THEN 'running'
            WHEN status = 'cancelled' AND expires_at <= finished_at THEN 'expired' ELSE status END AS status,
       waits_for, created_at, available_at, delivered_at, started_at, finished_at, next_attempt_at, attempts,
       last_error, correlation_id::text, causation_id::text, originals, concurrency_key,
       nullif(expires_at, 'infinity') AS expires_at, attempt_log, claim_token, metadata,
       payload
FROM task_outbox
WHERE id = %(id)s
