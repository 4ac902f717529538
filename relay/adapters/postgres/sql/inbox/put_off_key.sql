-- A message whose key is beyond its rate waits as in a back-off, without an attempt: so it fills no window, those behind
-- it in the order of its key wait, and others come in.
UPDATE inbox_messages
SET enqueued_at = clock_timestamp() + %(delay)s, next_attempt_at = clock_timestamp() + %(delay)s
WHERE message_id = %(message_id)s AND enqueued_at < 'infinity'
