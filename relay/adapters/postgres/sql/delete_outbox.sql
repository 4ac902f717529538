-- Delete what was read back from the archive; the transaction holds these rows locked.
DELETE FROM outbox_events WHERE id = ANY (%(ids)s::uuid[])
