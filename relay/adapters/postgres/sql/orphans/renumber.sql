-- The next number for an event: of a key, the one that was numbered last comes last.
UPDATE outbox_events SET seq = DEFAULT WHERE id = %(id)s
