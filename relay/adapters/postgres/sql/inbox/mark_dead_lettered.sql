-- The dead letter is stored in the stream, so the row is finished. Also records whether its key goes on without the
-- message.
UPDATE inbox_messages
SET dead_lettered_at = clock_timestamp(), claim_token = NULL, claimed_until = NULL, next_attempt_at = NULL,
    stepped_over = %(skip)s
WHERE message_id = %(message_id)s AND claim_token = %(token)s
