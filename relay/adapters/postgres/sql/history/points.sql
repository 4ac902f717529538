-- The series of a time in equal parts: sums, and the worst of what waited. A part without a row of the outbox is a gap.
SELECT date_bin(%(part)s::interval, at, %(since)s) AS at, kind, name, sum(minutes)::int AS minutes,
       sum(done)::bigint AS done, sum(failed)::bigint AS failed, sum(died)::bigint AS died, max(waiting) AS waiting,
       max(oldest_seconds) AS oldest_seconds, max(dead) AS dead
FROM history
WHERE step = %(step)s AND at >= %(since)s AND at < %(until)s AND kind <> 'release'
  AND (%(kind)s::text IS NULL OR (kind = %(kind)s AND name = %(name)s) OR (kind = 'outbox' AND name = ''))
GROUP BY 1, kind, name
ORDER BY kind, name, 1
