-- Release a rejected row whose dead letter could not be stored. It is tried again later.
UPDATE inbox_messages
SET next_attempt_at = clock_timestamp() + %(delay)s,
    enqueued_at = clock_timestamp() + %(delay)s,
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s
