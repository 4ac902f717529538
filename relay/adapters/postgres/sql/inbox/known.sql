-- Which of these messages the inbox holds, or held before they were archived.
SELECT message_id FROM inbox_messages WHERE message_id = ANY (%(ids)s::uuid[])
UNION
SELECT message_id FROM archived_messages WHERE message_id = ANY (%(ids)s::uuid[])
