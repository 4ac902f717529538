-- Have the next sweep send messages that wait for another attempt. What they have spent of their attempts stays spent.
UPDATE inbox_messages
SET next_attempt_at = clock_timestamp(),
    enqueued_at = 'epoch'
WHERE message_id = ANY (%(ids)s::uuid[])
