-- The message of a subscription to try while its handler is away: in turn one that never failed, the failed one that
-- has waited longest, and the one that failed last again. So good messages get through, all get their turn, and one
-- that needs another try soon has it. It is due at once, whatever its back-off.
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
    ORDER BY (i.last_error IS NULL) <> (%(which)s = 'new'),
             extract(epoch FROM i.enqueued_at) * CASE %(which)s WHEN 'again' THEN -1 ELSE 1 END NULLS FIRST
    LIMIT 1)
RETURNING message_id
