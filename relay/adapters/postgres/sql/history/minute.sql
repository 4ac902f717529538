-- The last whole minute that ended at least `grace` ago, whether it is recorded, and in how many seconds the next one
-- may be. The clock of the database decides, so schedulers agree.
SELECT due.at,
       EXISTS (SELECT FROM history AS h
               WHERE h.step = 'minute' AND h.kind = 'outbox' AND h.name = '' AND h.at = due.at) AS recorded,
       extract(epoch FROM due.at + interval '2 minutes' + due.grace - clock_timestamp())::float8 AS next_in_seconds
FROM (SELECT date_trunc('minute', clock_timestamp() - %(grace)s::interval) - interval '1 minute' AS at,
             %(grace)s::interval AS grace) AS due
