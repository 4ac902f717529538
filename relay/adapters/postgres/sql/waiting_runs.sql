-- Runs that a worker should take up: new ones, those whose next attempt is due, and those that got lost with a worker
-- or with the queue. Marked, so that they are not enqueued again at once.
UPDATE scheduled_runs SET enqueued_at = clock_timestamp()
WHERE id IN (
  SELECT id FROM scheduled_runs
  WHERE (state = 'waiting' AND coalesce(available_at, '-infinity') <= clock_timestamp()
         OR state = 'started' AND claimed_until <= clock_timestamp())
    AND (enqueued_at IS NULL OR enqueued_at <= greatest(available_at, claimed_until)
         OR enqueued_at <= clock_timestamp() - %(patience)s)
  ORDER BY opened_at LIMIT 1000
  FOR UPDATE SKIP LOCKED
)
RETURNING job, scheduled_for
