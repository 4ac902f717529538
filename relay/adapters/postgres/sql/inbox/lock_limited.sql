-- Lock a message of a subscription with a limit that may be claimed; whether it was put off before: then a slot was
-- promised to it; and its key.
SELECT coalesce(enqueued_at > received_at, false), partition_key
FROM inbox_messages
WHERE message_id = %(message_id)s
  AND num_nonnulls(processed_at, dead_lettered_at) = 0
  AND relay_is_free(claimed_until, next_attempt_at, interval '50 milliseconds')
FOR UPDATE
