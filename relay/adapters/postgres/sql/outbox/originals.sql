-- The rows of events by the texts of their ids.
SELECT originals ->> 'id', id
FROM outbox_events
WHERE originals ->> 'id' = ANY (%(texts)s::text[])
