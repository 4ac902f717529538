-- What happened in a time that may explain a change: what operators did, circuits that opened or closed, and releases
-- that began to run: they were not there when the releases were last known before. The newest come first.
SELECT at, what, about, actor
FROM ((SELECT at, action AS what,
              CASE WHEN cardinality(ids) = 1 THEN ids[1] ELSE cardinality(ids)::text END AS about, actor
       FROM audit_log
       WHERE at >= %(since)s AND at < %(until)s
       ORDER BY at DESC
       LIMIT %(limit)s)
      UNION ALL
      (SELECT raised_at, CASE WHEN state = 'resolved' THEN 'circuit.close' ELSE 'circuit.open' END, subject, NULL
       FROM alerts
       WHERE class = 'condition' AND about ->> 'code' = 'handler_away' AND state <> 'lasting'
         AND raised_at >= %(since)s AND raised_at < %(until)s
       ORDER BY raised_at DESC
       LIMIT %(limit)s)
      UNION ALL
      (SELECT known.at, 'release', name, NULL
       FROM (SELECT at, array_agg(name) AS names, lag(array_agg(name)) OVER (ORDER BY at) AS former
             FROM history
             WHERE step = %(step)s AND kind = 'release' AND at >= %(since)s - interval '1 day' AND at < %(until)s
             GROUP BY at) AS known, unnest(names) AS name
       WHERE known.at >= %(since)s AND name <> ALL (former))
      UNION ALL
      (SELECT c.at, c.what, c.subscription, NULL
       FROM (SELECT opened_at AS at, 'circuit.open' AS what, subscription FROM handler_circuits
             UNION ALL
             SELECT closed_at, 'circuit.close', subscription FROM handler_circuits) AS c
       -- The scheduler notices it up to some minutes later, and keeps it for longer.
       WHERE c.at >= %(since)s AND c.at < %(until)s
         AND NOT EXISTS (SELECT FROM alerts AS a
                         WHERE a.class = 'condition' AND a.about ->> 'code' = 'handler_away'
                           AND a.subject LIKE '%%' || c.subscription AND a.state <> 'lasting'
                           AND a.raised_at BETWEEN c.at AND c.at + interval '3 minutes'))) AS happened
ORDER BY at DESC
LIMIT %(limit)s
