-- Put archived rows back as they were. A row that is in its table stays as it is.
INSERT INTO task_outbox
SELECT row.*
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::task_outbox, line::json) AS row
ON CONFLICT DO NOTHING
