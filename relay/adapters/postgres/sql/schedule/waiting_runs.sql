-- Runs that a worker should claim: new runs, runs whose next attempt is due, and runs that were lost with a worker
-- or with the queue. They are marked, so that they are not enqueued again at once.
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
