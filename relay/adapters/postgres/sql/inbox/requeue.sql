-- Put messages back into the inbox of the consumer that failed, with new attempts, due for the next sweep. The
-- stream is not touched, so no other consumer sees them again. In an ordered subscription they keep their place,
-- so each is the head of its key.
UPDATE inbox_messages AS i
SET dead_lettered_at = NULL,
    dead_letter_reason = NULL,
    dead_letter_class = NULL,
    last_error = NULL,
    attempts = 0,
    requeues = i.requeues + 1,
    next_attempt_at = clock_timestamp(),
    enqueued_at = 'epoch',
    claim_token = NULL,
    claimed_until = NULL,
    stepped_over = false
FROM dead_letters AS d
WHERE d.id = ANY (%(ids)s::bigint[])
  AND i.message_id = d.message_id
  AND i.dead_lettered_at IS NOT NULL
  AND i.processed_at IS NULL
  AND i.requeues = d.occurrence - 1
RETURNING d.id
