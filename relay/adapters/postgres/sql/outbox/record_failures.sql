-- Count an attempt of each event, or only the first one, which marks it as failed. An event with a null delay is
-- dead: it is kept, and an operator can publish it again.
UPDATE outbox_events AS e
SET publish_attempts = greatest(1, least(e.publish_attempts, 2147483646) + failure.counted),
    publish_error = failure.error,
    available_at = CASE WHEN failure.delay IS NULL THEN e.available_at ELSE clock_timestamp() + failure.delay END,
    dead_at = CASE WHEN failure.delay IS NULL THEN clock_timestamp() END
FROM unnest(%(ids)s::uuid[], %(errors)s::text[], %(delays)s::interval[], %(counted)s::int[])
     AS failure (id, error, delay, counted)
WHERE e.id = failure.id
