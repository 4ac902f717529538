-- Open incidents that no alert has named yet, locked while the alert is sent. Incidents beyond 1000 wait for the
-- next alert.
SELECT id, message_id, subscription, event_type, correlation_id, causation_id, class, reason, attempts,
       coalesce(headers ->> 'traceparent', headers ->> 'Traceparent'), originals
FROM dead_letters AS d
WHERE alerted_at IS NULL AND status = 'open' AND relay_incident_state(d) = 'open'
ORDER BY id
LIMIT 1000
FOR UPDATE SKIP LOCKED
