-- Let discarded events go on, at their places: with new attempts, and those that were delayed at their time.
UPDATE outbox_events
SET published_at = NULL,
    dead_at = NULL,
    available_at = CASE WHEN publish_attempts = 0 THEN available_at END,
    publish_attempts = 0,
    publish_error = NULL
WHERE id = ANY (%(ids)s::uuid[])
  AND published_at IS NOT NULL
  AND dead_at IS NOT NULL
