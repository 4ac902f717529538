-- A message is over without a call: its time has passed. As a discarded one it counts as processed, and its class says
-- that no handler had it. So its key goes on, a copy is recognised, and the archive takes it in its time.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at),
    dead_letter_class = 'expired',
    last_error = dead_letter_reason,
    next_attempt_at = NULL,
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = %(message_id)s AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
