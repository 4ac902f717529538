-- An operator says how long events may still be published: from now on, or for ever.
UPDATE outbox_events
SET expires_at = coalesce(clock_timestamp() + %(expires_in)s::interval, 'infinity')
WHERE id = ANY (%(ids)s::uuid[])
