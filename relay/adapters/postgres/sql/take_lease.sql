-- Take or renew the lead of the context, by the database's clock. Only one whose time is over can be taken.
-- The commit is not waited for: a renewal lost in a crash only means that the lead is taken again.
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
