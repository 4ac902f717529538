-- Lock tasks for an operator's action. This waits for a relay or worker that holds them.
SELECT id, status, coalesce(claimed_until >= clock_timestamp(), false)
FROM task_outbox
WHERE id = ANY (%(ids)s::uuid[])
ORDER BY seq
FOR UPDATE
