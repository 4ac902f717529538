-- Tasks that match a filter, the newest first, and how many match in all.
SELECT id, type, queue, priority, state AS status, waits_for, created_at, available_at, delivered_at,
       started_at, finished_at, next_attempt_at, attempts, last_error, correlation_id::text, causation_id::text,
       originals, concurrency_key, count(*) OVER () AS total
FROM (SELECT *, CASE WHEN status = 'delivered' AND claimed_until >= now() THEN 'running' ELSE status END AS state
      FROM task_outbox) AS task
WHERE state = ANY (%(statuses)s::text[])
  AND (%(type)s::text IS NULL OR type = %(type)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(correlation_id)s::uuid IS NULL OR correlation_id = %(correlation_id)s)
  AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
  AND (%(error)s::text IS NULL OR last_error ~ %(error)s)
ORDER BY seq DESC
LIMIT %(limit)s
