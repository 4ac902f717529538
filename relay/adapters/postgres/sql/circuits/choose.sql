-- The message of a subscription to try while its handler is away: one that never failed, if there is one, else the one
-- that has waited longest. So a message that always fails is not tried again and again, and good ones get through.
-- It is due at once, whatever its back-off.
UPDATE inbox_messages
SET enqueued_at = now(), next_attempt_at = NULL
WHERE message_id = (
    SELECT message_id
    FROM (SELECT *
          FROM inbox_messages
          WHERE processed_at IS NULL
            AND dead_lettered_at IS NULL
            AND subscription = %(subscription)s
          ORDER BY enqueued_at
          LIMIT %(limit)s) AS i
    WHERE i.dead_letter_reason IS NULL
      AND i.enqueued_at IS DISTINCT FROM 'infinity'
      AND (i.claimed_until IS NULL OR i.claimed_until < now())
--+ in_turn
    ORDER BY num_nonnulls(i.last_error), i.enqueued_at NULLS FIRST
    LIMIT 1)
RETURNING message_id
