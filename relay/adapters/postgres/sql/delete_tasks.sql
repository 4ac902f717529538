-- Delete what was read back from the archive; the transaction holds these rows locked.
DELETE FROM task_outbox WHERE id = ANY (%(ids)s::uuid[])
