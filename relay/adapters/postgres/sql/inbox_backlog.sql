-- QRY-051: what waits to be handled, what of it keeps failing, and what ended as a dead letter.
SELECT count(*) FILTER (WHERE dead_lettered_at IS NULL) AS count,
       min(received_at) FILTER (WHERE dead_lettered_at IS NULL) AS oldest_at,
       greatest(0, extract(epoch FROM
           clock_timestamp() - min(received_at) FILTER (WHERE dead_lettered_at IS NULL)))::float8 AS oldest_age_seconds,
       count(*) FILTER (WHERE dead_lettered_at IS NULL AND attempts > 3) AS failed_attempts,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) AS dead_lettered
FROM inbox_messages
WHERE processed_at IS NULL
