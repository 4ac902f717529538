-- Note until when messages that came just now are worth handling: until the time that they name, or so long after they
-- occurred or came. An operator's time stays.
UPDATE inbox_messages AS i
SET expires_at = least(given.ends, coalesce(i.occurred_at, i.received_at) + %(expires_in)s::interval)
FROM unnest(%(ids)s::uuid[], %(ends)s::timestamptz[]) AS given (message_id, ends)
WHERE i.message_id = given.message_id
  AND num_nonnulls(i.processed_at, i.dead_lettered_at, i.expires_at) = 0
