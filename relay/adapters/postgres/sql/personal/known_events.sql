-- Which of these events are in the outbox.
SELECT id FROM outbox_events WHERE id = ANY (%(ids)s::uuid[])
