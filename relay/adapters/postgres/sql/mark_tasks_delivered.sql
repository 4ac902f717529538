-- The queue has confirmed these tasks.
UPDATE task_outbox
SET status = 'delivered', delivered_at = clock_timestamp(), enqueued_at = clock_timestamp()
WHERE id = ANY (%(ids)s::uuid[])
