-- The rows that subscriptions have of a message: one for each that knows it.
SELECT message_id FROM inbox_messages WHERE message_id = %(id)s
UNION
SELECT message_id FROM inbox_messages WHERE source_id = %(id)s
