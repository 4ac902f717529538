-- Open incidents that nobody was told of, locked while they are being told. The number of all goes with them.
SELECT id, message_id, subscription, event_type, correlation_id, class, reason, attempts
FROM dead_letters
WHERE alerted_at IS NULL AND status = 'open'
ORDER BY id
LIMIT 1000
FOR UPDATE SKIP LOCKED
