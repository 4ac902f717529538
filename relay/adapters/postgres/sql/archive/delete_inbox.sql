-- Delete the rows that were read back from the archive. The transaction holds these rows locked.
DELETE FROM inbox_messages WHERE message_id = ANY (%(ids)s::uuid[])
