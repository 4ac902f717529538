-- The dead letter is stored in the stream, so the row is finished. Also records whether its key goes on without the
-- message: by the policy, or because an operator has closed the incident already.
UPDATE inbox_messages AS i
SET dead_lettered_at = clock_timestamp(), claim_token = NULL, claimed_until = NULL, next_attempt_at = NULL,
    stepped_over = %(skip)s OR EXISTS (
        SELECT
        FROM dead_letters AS d
        WHERE d.message_id = i.message_id AND d.occurrence = i.requeues + 1 AND d.status IN ('discarded', 'resolved'))
WHERE message_id = %(message_id)s AND claim_token = %(token)s
