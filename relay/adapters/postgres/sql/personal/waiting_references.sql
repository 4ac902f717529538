-- The references to large payloads of messages that are not processed.
SELECT DISTINCT headers ->> %(header)s FROM inbox_messages WHERE processed_at IS NULL AND headers ? %(header)s
