-- QRY-050: how many events are not published; of these, how many wait and how many are dead until an operator
-- acts.
SELECT count(*) AS count,
       min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE dead_at IS NULL) AS waiting,
       greatest(0, extract(epoch FROM
           clock_timestamp() - min(occurred_at) FILTER (WHERE dead_at IS NULL)))::float8 AS waiting_age_seconds,
       count(*) FILTER (WHERE dead_at IS NOT NULL) AS dead
FROM outbox_events
WHERE published_at IS NULL
