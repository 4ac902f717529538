-- QRY-051: how many messages are not processed; of these, how many wait, keep failing, or ended as dead letters.
SELECT count(*) AS count,
       min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL) AS waiting,
       greatest(0, extract(epoch FROM
           clock_timestamp() - min(received_at) FILTER (WHERE dead_lettered_at IS NULL)))::float8 AS waiting_age_seconds,
       count(*) FILTER (WHERE dead_lettered_at IS NULL AND attempts > 3) AS failed_attempts,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) AS dead
FROM inbox_messages
WHERE processed_at IS NULL
