-- The open circuits of a context, and what has become of their probes; and the subscriptions whose pause is over while
-- what has waited is not enqueued yet. While a subscription is paused, it has no probes.
SELECT c.subscription, c.probe_id, c.probe_at, clock_timestamp() AS now,
       CASE WHEN i.message_id IS NULL OR i.dead_letter_class IN ('discarded', 'expired') OR i.next_attempt_at = 'infinity' THEN 'gone'
            WHEN i.processed_at IS NOT NULL OR i.dead_letter_class <> 'exhausted' THEN 'answered'
            WHEN num_nonnulls(i.dead_lettered_at, i.dead_letter_reason) > 0 THEN 'gone'
            WHEN i.claimed_until >= now() THEN 'running'
            ELSE 'waiting' END AS probe,
       c.opened_at IS NOT NULL AS open, c.paused_until IS NOT NULL AS resumed
FROM handler_circuits AS c
LEFT JOIN inbox_messages AS i ON i.message_id = c.probe_id
WHERE (c.opened_at IS NOT NULL OR c.paused_until IS NOT NULL)
  AND coalesce(c.paused_until <= clock_timestamp(), true)
