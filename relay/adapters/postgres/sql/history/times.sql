-- How many took how long, in the same parts as history/points.
SELECT date_bin(%(part)s::interval, at, %(since)s) AS at, kind, name, what, one.key::int AS bucket,
       sum(one.value::bigint)::bigint AS n
FROM history, LATERAL (VALUES ('handling', handling), ('waited', waited)) AS of (what, buckets),
     LATERAL jsonb_each_text(buckets) AS one
WHERE step = %(step)s AND at >= %(since)s AND at < %(until)s AND kind <> 'release'
  AND (%(kind)s::text IS NULL OR (kind = %(kind)s AND name = %(name)s))
GROUP BY 1, kind, name, what, one.key
