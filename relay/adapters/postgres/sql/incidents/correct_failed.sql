-- As incidents/correct, when the function has failed. That alerts.
WITH corrected AS (
--+ correct
    RETURNING id, message_id, subscription, event_type)
INSERT INTO alerts (class, subject_type, subject, reason, about)
SELECT 'failed_correction', 'subscription', coalesce(subscription, 'unknown'), left(%(error)s, 500),
       jsonb_build_object('id', id, 'message_id', message_id, 'event_type', event_type)
FROM corrected
