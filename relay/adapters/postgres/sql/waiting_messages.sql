-- Reply subjects of unfinished messages, so that JetStream is told they are in progress.
SELECT ack_subject
FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(subscription)s
ORDER BY received_at
LIMIT %(limit)s
