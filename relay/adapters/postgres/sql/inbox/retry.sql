-- Make messages that wait for another attempt due for the next sweep. Their attempts so far stay counted.
UPDATE inbox_messages
SET next_attempt_at = clock_timestamp(),
    enqueued_at = 'epoch'
WHERE message_id = ANY (%(ids)s::uuid[])
