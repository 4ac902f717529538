-- Parked keys by subscription, for the metrics.
SELECT subscription, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(parked_at)))::float8 AS oldest_age_seconds
FROM parked_keys
GROUP BY subscription
