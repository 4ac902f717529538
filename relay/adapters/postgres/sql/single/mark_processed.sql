-- The message is handled, unless a worker has it now or it is finished.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at), next_attempt_at = NULL
WHERE message_id = %(id)s AND num_nonnulls(processed_at, dead_letter_reason) = 0
  AND (claimed_until IS NULL OR claimed_until < now())
