-- An operator says how long the messages of incidents may still be handled: from now on, or for ever.
UPDATE inbox_messages AS i
SET expires_at = coalesce(clock_timestamp() + %(expires_in)s::interval, 'infinity')
FROM dead_letters AS d
WHERE d.id = ANY (%(ids)s::bigint[]) AND i.message_id = d.message_id
