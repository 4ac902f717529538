-- Count an attempt of each event, or only the first one, which marks it as failed. An event with a null delay is
-- dead: it is kept, and an operator can publish it again.
UPDATE outbox_events AS e
SET publish_attempts = greatest(1, least(e.publish_attempts, 2147483646) + failure.counted),
    publish_error = failure.error,
    attempt_log = relay_noted(e.attempt_log, %(worker)s::jsonb || jsonb_build_object(
        'n', greatest(1, least(e.publish_attempts, 2147483646) + failure.counted), 'round', e.generation,
        'at', clock_timestamp(), 'next', clock_timestamp() + failure.delay, 'error', left(failure.error, 500),
        'outcome', CASE WHEN failure.delay IS NULL THEN 'dead' WHEN failure.counted = 0 THEN 'put off' ELSE 'failed' END)),
    available_at = CASE WHEN failure.delay IS NULL THEN e.available_at ELSE clock_timestamp() + failure.delay END,
    dead_at = CASE WHEN failure.delay IS NULL THEN clock_timestamp() END
FROM unnest(%(ids)s::uuid[], %(errors)s::text[], %(delays)s::interval[], %(counted)s::int[])
     AS failure (id, error, delay, counted)
WHERE e.id = failure.id
