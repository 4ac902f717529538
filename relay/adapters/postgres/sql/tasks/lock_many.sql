-- Lock tasks for an operator's action. This waits for a relay or worker that holds them.
SELECT id, CASE WHEN status = 'cancelled' AND expires_at <= finished_at THEN 'expired' ELSE status END,
       coalesce(claimed_until >= clock_timestamp(), false), coalesce(expires_at <= clock_timestamp(), false)
FROM task_outbox
WHERE id = ANY (%(ids)s::uuid[])
ORDER BY seq
FOR UPDATE
