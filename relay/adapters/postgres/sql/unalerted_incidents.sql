-- Open incidents that nobody was told of, locked while they are being told; more than these wait for the next alert.
SELECT id, message_id, subscription, event_type, correlation_id, causation_id, class, reason, attempts
FROM dead_letters
WHERE alerted_at IS NULL AND status = 'open'
ORDER BY id
LIMIT 1000
FOR UPDATE SKIP LOCKED
