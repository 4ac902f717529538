-- The last hour of a context in parts of two minutes, by kind of series: what was done and what failed. A part without a
-- row of the outbox is a gap.
SELECT (extract(epoch FROM at - since)::int / 120)::int AS part, kind, sum(minutes) FILTER (WHERE kind = 'outbox')::int,
       sum(done)::bigint AS done, sum(failed + died)::bigint AS failed
FROM history, (SELECT date_trunc('minute', clock_timestamp()) - interval '1 hour' AS since) AS hour
WHERE step = 'minute' AND at >= since AND at < since + interval '1 hour'
GROUP BY 1, 2
