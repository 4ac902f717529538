-- Make causes of open dead letters that have none: new ones, and those whose snooze is over. An unconfirmed letter may
-- name any subscription: all of them share a subject, so that a flood hides no other alert.
WITH taken AS (
    UPDATE dead_letters
    SET alerted_at = clock_timestamp()
    WHERE id IN (
        SELECT id
        FROM dead_letters AS d
        WHERE alerted_at IS NULL AND status = 'open' AND relay_incident_state(d) = 'open'
        ORDER BY id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED)
    RETURNING id, message_id, recorded_at, subscription, event_type, correlation_id, causation_id, class, reason,
              attempts, headers, originals)
INSERT INTO alerts (class, subject_type, subject, reason, since, about)
SELECT 'dead_letter', 'subscription',
       CASE WHEN class = 'unconfirmed' THEN 'unknown' ELSE coalesce(subscription, 'unknown') END, left(reason, 500), recorded_at,
       jsonb_build_object(
           'id', id, 'message_id', coalesce(originals ->> 'id', message_id::text), 'event_type', event_type,
           'correlation_id', coalesce(originals ->> 'correlation_id', correlation_id::text),
           'causation_id', coalesce(originals ->> 'causation_id', causation_id::text),
           'class', class, 'attempts', attempts,
           'traceparent', coalesce(headers ->> 'traceparent', headers ->> 'Traceparent'))
FROM taken
ORDER BY id
