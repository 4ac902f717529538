-- Try failed events again, with new attempts and a new back-off; the error is cleared. The business operation is
-- not touched.
UPDATE outbox_events
SET dead_at = NULL, available_at = NULL, publish_attempts = 0, publish_error = NULL
WHERE id = ANY (%(ids)s::uuid[])
  AND published_at IS NULL
