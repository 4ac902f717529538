-- The message of a subscription to try while its handler is away: in turn the newest that never failed, the oldest of
-- those, and the failed one that has waited longest. So a good message gets through, on whichever side of the bad ones
-- it stands, and all get their turn. It is due at once, whatever its back-off.
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
    ORDER BY (i.last_error IS NULL) = (%(which)s = 'longest'),
             CASE WHEN i.last_error IS NOT NULL THEN i.enqueued_at END,
             extract(epoch FROM i.received_at) * CASE %(which)s WHEN 'newest' THEN -1 ELSE 1 END,
             i.stream_seq * CASE %(which)s WHEN 'newest' THEN -1 ELSE 1 END
    LIMIT 1)
RETURNING message_id
