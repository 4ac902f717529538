-- A task that may not start yet waits. This does not count as an attempt.
UPDATE task_outbox
SET status = 'delivered',
    delivered_at = coalesce(delivered_at, clock_timestamp()),
    next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    waits_for = %(waits_for)s
WHERE id = %(id)s
  AND status IN ('pending', 'delivered')
  AND (claimed_until IS NULL OR claimed_until < clock_timestamp())
  AND (next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp() + interval '50 milliseconds')
