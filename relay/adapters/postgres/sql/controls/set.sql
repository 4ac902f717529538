-- Pause or limit something, or change that. A pause that is in force keeps since when it is.
INSERT INTO controls AS known (what, name, act, until, concurrency, "interval", per_key, former_concurrency,
                               former_interval, former_per_key, reason, by, since)
VALUES (%(what)s, %(name)s, %(act)s, %(until)s, %(concurrency)s, %(interval)s, %(per_key)s,
        %(former_concurrency)s, %(former_interval)s, %(former_per_key)s, %(reason)s, %(by)s, clock_timestamp())
ON CONFLICT (what, name, act) DO UPDATE
SET until = excluded.until, concurrency = excluded.concurrency, "interval" = excluded."interval",
    per_key = excluded.per_key, former_per_key = excluded.former_per_key,
    former_concurrency = excluded.former_concurrency, former_interval = excluded.former_interval,
    reason = excluded.reason, by = excluded.by,
    since = CASE WHEN excluded.act = 'pause' AND coalesce(known.until > clock_timestamp(), true)
                 THEN known.since ELSE excluded.since END
