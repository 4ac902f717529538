-- Try failed events again: attempts and back-off start anew. The business operation is not touched.
UPDATE outbox_events
SET dead_at = NULL, available_at = NULL, publish_attempts = 0
WHERE id = ANY (%(ids)s::uuid[])
  AND published_at IS NULL
