-- The handler is away: give messages back the attempts that this has cost, and let them go on as soon as it is back. One
-- that runs keeps its claim.
UPDATE inbox_messages AS i
SET attempts = greatest(0, i.attempts - lost.attempts),
    next_attempt_at = CASE WHEN i.claimed_until >= now() THEN i.next_attempt_at ELSE clock_timestamp() END,
    enqueued_at = CASE WHEN i.claimed_until >= now() OR i.enqueued_at IS NULL OR i.enqueued_at = 'infinity'
                       THEN i.enqueued_at ELSE clock_timestamp() END
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[]) AS lost (message_id, attempts)
WHERE i.message_id = lost.message_id
  AND i.message_id IN (
      SELECT message_id
      FROM inbox_messages
      WHERE message_id = ANY (%(ids)s::uuid[])
        AND num_nonnulls(processed_at, dead_lettered_at, dead_letter_reason) = 0
        AND next_attempt_at IS DISTINCT FROM 'infinity'
      FOR NO KEY UPDATE
--+ not_locked
  )
RETURNING i.message_id
