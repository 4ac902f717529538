-- Take or renew the lease of the context, by the clock of the database. Another holder's lease must have expired.
-- This does not wait for the disk: if a crash undoes a renewal, the lease is just taken again.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
taken AS (
  UPDATE scheduler_lease
  SET holder = %(holder)s,
      who = %(who)s,
      term = term + CASE WHEN holder IS DISTINCT FROM %(holder)s THEN 1 ELSE 0 END,
      acquired_at = CASE WHEN holder IS DISTINCT FROM %(holder)s THEN clock_timestamp() ELSE acquired_at END,
      expires_at = clock_timestamp() + %(ttl)s
  FROM relaxed
  WHERE holder = %(holder)s OR coalesce(expires_at <= clock_timestamp(), true)
  RETURNING term
),
requests AS (
  SELECT array_agg(name) AS names, array_agg(requested_at) AS times
  FROM scheduled_jobs WHERE requested_at IS NOT NULL AND removed_at IS NULL
)
SELECT (SELECT term FROM taken),
       greatest(extract(epoch FROM expires_at - clock_timestamp()), 0)::float8,
       requests.names,
       requests.times
FROM scheduler_lease, requests
