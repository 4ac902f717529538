-- Open incidents of a subscription whose correction has not run, the oldest first. Of a letter that no row confirms,
-- anybody may be the sender.
SELECT d.id AS incident_id, d.message_id, d.occurrence, d.subscription, d.subject, d.event_type, d.class AS kind,
       d.reason, d.attempts, d.correlation_id, d.causation_id, d.headers, d.original AS body, d.originals
FROM dead_letters AS d
JOIN corrections AS c ON c.subscription = d.subscription AND d.recorded_at >= c.declared_at
WHERE d.subscription = %(subscription)s AND d.status = 'open' AND d.corrected_at IS NULL AND d.class <> 'unconfirmed'
ORDER BY d.id
LIMIT %(limit)s
