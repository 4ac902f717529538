-- The subscriptions whose handlers are away, the longest first.
SELECT subscription, reason, greatest(0, extract(epoch FROM clock_timestamp() - opened_at))::float8 AS seconds
FROM handler_circuits
WHERE opened_at IS NOT NULL
ORDER BY opened_at
