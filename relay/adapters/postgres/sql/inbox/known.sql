-- Which of these messages the inbox holds.
SELECT message_id FROM inbox_messages WHERE message_id = ANY (%(ids)s::uuid[])
