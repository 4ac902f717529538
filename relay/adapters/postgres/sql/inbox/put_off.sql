-- A message that a limit does not let begin waits. This does not count as an attempt, and it keeps its place in the
-- window: it has not failed. One that waits for its turn, or is parked, stays so.
UPDATE inbox_messages
SET enqueued_at = clock_timestamp() + %(delay)s
WHERE message_id = %(message_id)s AND enqueued_at < 'infinity'
