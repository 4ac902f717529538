-- Put archived rows back as they were. A row that is in its table stays as it is.
INSERT INTO inbox_messages
SELECT row.*
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::inbox_messages, line::json) AS row
ON CONFLICT DO NOTHING
