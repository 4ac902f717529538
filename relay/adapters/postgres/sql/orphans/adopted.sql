-- The outbox knows these events again.
DELETE FROM orphaned_events WHERE event_id = ANY (%(ids)s::uuid[])
