-- One incident with its original message, for an operator.
SELECT d.id, d.message_id, d.occurrence, d.recorded_at, d.subscription, d.subject, d.stream, d.stream_seq,
       d.event_type, d.correlation_id, d.causation_id, d.originals, d.class, d.reason, d.attempts,
       relay_incident_state(d) AS status,
       d.snoozed_until, d.closed_at, d.closed_by, d.note, d.correction,
       CASE WHEN d.status = 'requeued' THEN i.processed_at END AS handled_at,
       i.attempt_log, i.attempts AS attempts_now, i.requeues AS requeues_now, i.processed_at AS processed_now,
       i.dead_lettered_at AS dead_now, i.claimed_until >= now() AS running_now, i.claim_token,
       d.headers, d.original
FROM dead_letters AS d
LEFT JOIN inbox_messages AS i ON i.message_id = d.message_id
WHERE d.id = %(id)s
