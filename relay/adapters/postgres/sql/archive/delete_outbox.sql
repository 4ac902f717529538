-- Delete the rows that were read back from the archive. The transaction holds these rows locked.
DELETE FROM outbox_events WHERE id = ANY (%(ids)s::uuid[])
