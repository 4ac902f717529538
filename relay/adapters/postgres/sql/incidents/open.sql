-- Incidents that wait for an operator, by subscription and class, for the metrics. An unconfirmed letter may name any
-- subscription: it counts for none.
SELECT CASE WHEN class <> 'unconfirmed' THEN subscription END AS subscription, class AS kind, count(*) AS count,
       greatest(0, extract(epoch FROM clock_timestamp() - min(recorded_at)))::float8 AS oldest_age_seconds
FROM dead_letters AS d
WHERE status = 'open' AND relay_incident_state(d) = 'open'
GROUP BY 1, class
