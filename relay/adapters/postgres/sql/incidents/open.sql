-- Incidents that wait for an operator, by subscription and class, for the metrics.
SELECT subscription, class AS kind, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(recorded_at)))::float8 AS oldest_age_seconds
FROM dead_letters
WHERE status = 'open'
GROUP BY subscription, class
