-- The message was not handled. Its back-off stays as it is.
UPDATE inbox_messages
SET attempts = least(attempts, 2147483646) + 1, last_error = %(error)s
WHERE message_id = %(id)s AND num_nonnulls(processed_at, dead_letter_reason) = 0
  AND (claimed_until IS NULL OR claimed_until < now())
