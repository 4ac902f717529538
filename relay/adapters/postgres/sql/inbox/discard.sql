-- Give messages up. Each is over as a processed one is, and its class says that no handler had it. So its key goes on,
-- JetStream gets its acknowledgement, a copy is recognised, and the archive takes it in its time.
UPDATE inbox_messages
SET processed_at = greatest(clock_timestamp(), received_at),
    dead_letter_class = 'discarded',
    next_attempt_at = NULL,
    let_go_at = coalesce(let_go_at, clock_timestamp()),
    claim_token = NULL,
    claimed_until = NULL
WHERE message_id = ANY (%(ids)s::uuid[])
  AND processed_at IS NULL
