-- An operator says how long tasks may still be run: from now on, or for ever.
UPDATE task_outbox
SET expires_at = coalesce(clock_timestamp() + %(expires_in)s::interval, 'infinity')
WHERE id = ANY (%(ids)s::uuid[])
