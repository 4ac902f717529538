-- Let messages go: they hold a place of JetStream's window and wait, all but the latest of them. The caller acknowledges
-- what is returned. The first part reads idx_inbox_holding. In the second, a message hangs: it runs, and came into the
-- queue long ago. While the handler is away, all in the queue wait. Locked rows are left for the next time.
-- ORDER BY makes the planner use the index.
WITH handler AS MATERIALIZED (
    SELECT away, now() - CASE WHEN away THEN interval '0' ELSE %(hangs)s::interval END AS until
    FROM (SELECT NOT EXISTS (SELECT FROM relay_may_call(NULL, %(subscription)s)) AS away) AS it),
holding AS (
    SELECT message_id, received_at, stream_seq
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
    SELECT message_id, received_at, stream_seq
    FROM (SELECT message_id, received_at, stream_seq, claimed_until, next_attempt_at, let_go_at
          FROM inbox_messages
          WHERE processed_at IS NULL
            AND dead_lettered_at IS NULL
            AND subscription = %(subscription)s
            AND enqueued_at < (SELECT until FROM handler)
          ORDER BY enqueued_at
          LIMIT 1000) AS due
    WHERE (claimed_until > now() OR (SELECT away FROM handler)) AND next_attempt_at IS NULL AND let_go_at IS NULL),
oldest AS (
    SELECT message_id FROM holding ORDER BY received_at DESC, stream_seq DESC OFFSET %(keep)s LIMIT %(limit)s)
UPDATE inbox_messages
SET let_go_at = now()
WHERE message_id = ANY (ARRAY(
    SELECT message_id
    FROM inbox_messages
    WHERE message_id = ANY (ARRAY(SELECT message_id FROM oldest))
      AND num_nonnulls(processed_at, dead_lettered_at, let_go_at) = 0
    FOR UPDATE SKIP LOCKED))
RETURNING ack_subject
