-- The minutes of an hour as one row of each series: sums, and the worst of what waited.
WITH minutes AS MATERIALIZED (
    SELECT *
    FROM history
    WHERE step = 'minute' AND at >= %(hour)s AND at < %(hour)s + interval '1 hour'
), counted AS (
    SELECT count(*) AS minutes FROM minutes WHERE kind = 'outbox' AND name = ''
), handled AS (
    SELECT kind, name, jsonb_object_agg(bucket, n) AS handling
    FROM (SELECT kind, name, one.key AS bucket, sum(one.value::bigint) AS n
          FROM minutes, LATERAL jsonb_each_text(handling) AS one GROUP BY kind, name, one.key) AS each
    GROUP BY kind, name
), waits AS (
    SELECT kind, name, jsonb_object_agg(bucket, n) AS waited
    FROM (SELECT kind, name, one.key AS bucket, sum(one.value::bigint) AS n
          FROM minutes, LATERAL jsonb_each_text(waited) AS one GROUP BY kind, name, one.key) AS each
    GROUP BY kind, name
)
INSERT INTO history
    (step, kind, name, at, minutes, done, failed, died, waiting, oldest_seconds, dead, handling, waited)
SELECT 'hour', kind, name, %(hour)s, counted.minutes, done, failed, died, waiting, oldest_seconds, dead,
       coalesce(handling, '{}'), coalesce(waited, '{}')
FROM counted,
     (SELECT kind, name, sum(done) AS done, sum(failed) AS failed, sum(died) AS died, max(waiting) AS waiting,
             max(oldest_seconds) AS oldest_seconds, max(dead) AS dead
      FROM minutes GROUP BY kind, name) AS summed
LEFT JOIN handled USING (kind, name)
LEFT JOIN waits USING (kind, name)
ON CONFLICT DO NOTHING
