-- Which rows hold another body than a message that came under their key.
SELECT message_id
FROM unnest(%(keys)s::uuid[], %(bodies)s::bytea[]) AS came (key, bytes)
JOIN inbox_messages ON message_id = key
WHERE body <> bytes
