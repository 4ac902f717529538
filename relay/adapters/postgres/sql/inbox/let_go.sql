-- Let messages go: they hold a place of JetStream's window and wait, all but the latest of them. The caller acknowledges
-- what is returned. The first part reads idx_inbox_holding. In the second, a message hangs: it runs, and came into the
-- queue long ago. Locked rows are left for the next time.
-- ORDER BY makes the planner use the index.
WITH holding AS (
    SELECT message_id, received_at
    FROM inbox_messages
    WHERE processed_at IS NULL
      AND dead_lettered_at IS NULL
      AND let_go_at IS NULL
      AND (enqueued_at IS NULL OR next_attempt_at IS NOT NULL)
      AND subscription = %(subscription)s
      AND enqueued_at IS DISTINCT FROM 'infinity'
      AND (next_attempt_at IS NOT NULL
           OR EXISTS (SELECT FROM relay_head(%(subscription)s, order_key) AS head
                      WHERE relay_is_held_up(head.dead_lettered_at, head.next_attempt_at, head.claimed_until,
                                             head.enqueued_at, %(hangs)s::interval)))
    UNION ALL
    SELECT message_id, received_at
    FROM (SELECT message_id, received_at, claimed_until, next_attempt_at, let_go_at
          FROM inbox_messages
          WHERE processed_at IS NULL
            AND dead_lettered_at IS NULL
            AND subscription = %(subscription)s
            AND enqueued_at < now() - %(hangs)s::interval
          ORDER BY enqueued_at
          LIMIT 1000) AS due
    WHERE claimed_until > now() AND next_attempt_at IS NULL AND let_go_at IS NULL),
oldest AS (
    SELECT message_id FROM holding ORDER BY received_at DESC, message_id OFFSET %(keep)s LIMIT %(limit)s)
UPDATE inbox_messages
SET let_go_at = now()
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM inbox_messages
    WHERE message_id = ANY (ARRAY(SELECT message_id FROM oldest))
      AND num_nonnulls(processed_at, dead_lettered_at, let_go_at) = 0
    FOR UPDATE SKIP LOCKED))
RETURNING ack_subject
