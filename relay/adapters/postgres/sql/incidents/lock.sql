-- Lock incidents, so that one operator at a time decides on each. Also reads whether their messages can be
-- requeued: the inbox row must be dead because of this incident.
SELECT d.id, relay_incident_state(d), d.event_type IS NOT NULL AS readable,
       EXISTS (
           SELECT 1
           FROM inbox_messages AS i
           WHERE i.message_id = d.message_id
             AND i.dead_lettered_at IS NOT NULL
             AND i.processed_at IS NULL
             AND i.requeues = d.occurrence - 1) AS waiting,
       d.class <> 'unconfirmed' AS confirmed,
       EXISTS (
           SELECT
           FROM inbox_messages AS i
           WHERE i.message_id = d.message_id AND i.expires_at <= clock_timestamp()) AS stale
FROM dead_letters AS d
WHERE d.id = ANY (%(ids)s::bigint[])
ORDER BY d.id
FOR UPDATE OF d
