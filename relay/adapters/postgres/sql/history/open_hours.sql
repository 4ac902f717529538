-- The whole hours that have minutes and no row of their own yet, the oldest first.
SELECT DISTINCT date_trunc('hour', h.at, 'UTC') AS hour
FROM history AS h
WHERE h.step = 'minute' AND h.kind = 'outbox' AND h.name = ''
  AND h.at < date_trunc('hour', %(at)s + interval '1 minute', 'UTC')
  AND NOT EXISTS (SELECT FROM history AS known
                  WHERE known.step = 'hour' AND known.kind = 'outbox' AND known.name = ''
                    AND known.at = date_trunc('hour', h.at, 'UTC'))
ORDER BY hour
