-- Which unreadable messages are others than those that had their place: the row holds another body, or it is in the
-- archive already. Rows stay until their stream has dropped the message, so one that comes later is not the same.
SELECT key
FROM unnest(%(keys)s::uuid[], %(bodies)s::bytea[]) AS came (key, bytes)
LEFT JOIN inbox_messages ON message_id = key
WHERE message_id IS NULL OR body <> bytes
