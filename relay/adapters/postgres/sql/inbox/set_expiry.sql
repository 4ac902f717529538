-- An operator says how long messages may still be handled: from now on, or for ever.
UPDATE inbox_messages
SET expires_at = coalesce(clock_timestamp() + %(expires_in)s::interval, 'infinity')
WHERE message_id = ANY (%(ids)s::uuid[])
