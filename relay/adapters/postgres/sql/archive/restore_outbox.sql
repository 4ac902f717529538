-- Put archived rows back as they were. A row that is in its table stays as it is. That is also true for a row
-- whose id has the same text and another UUID: it was added after the first had left.
INSERT INTO outbox_events
SELECT row.*
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::outbox_events, line::json) AS row
ON CONFLICT DO NOTHING
