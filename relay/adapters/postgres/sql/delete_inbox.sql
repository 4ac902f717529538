-- Delete what was read back from the archive; the transaction holds these rows locked.
DELETE FROM inbox_messages WHERE message_id = ANY (%(ids)s::uuid[])
