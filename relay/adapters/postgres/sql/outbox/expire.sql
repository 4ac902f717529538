-- Give up those of some claimed events whose time is over, by the clock of this database. Each is over without a place in
-- the stream: both times are set, as of a discarded event, and `expires_at` is not after them. Of a type with a default,
-- `age`, the time is noted in its row first: from when it was due, so that a delay spends none of it. Returns for each
-- event whether it is stale, its time as text, empty for never, and how many seconds are left.
WITH life AS MATERIALIZED (
    SELECT e.id, clock_timestamp() AS now,
           coalesce(e.expires_at, greatest(e.occurred_at, CASE WHEN e.publish_attempts = 0 THEN e.available_at END)
                                  + asked.age) AS ends
    FROM unnest(%(ids)s::uuid[], %(ages)s::interval[]) AS asked (id, age)
    JOIN outbox_events AS e USING (id)
),
noted AS (
    UPDATE outbox_events AS e
    SET expires_at = life.ends,
        published_at = CASE WHEN life.ends <= life.now THEN life.now ELSE e.published_at END,
        dead_at = CASE WHEN life.ends <= life.now THEN life.now ELSE e.dead_at END,
        publish_error = CASE WHEN life.ends <= life.now THEN %(reason)s ELSE e.publish_error END
    FROM life
    WHERE e.id = life.id AND (life.ends <= life.now OR e.expires_at IS NULL)
)
SELECT id::text, ends <= now,
       CASE WHEN isfinite(ends) THEN to_char(ends AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') ELSE '' END,
       CASE WHEN isfinite(ends) THEN extract(epoch FROM ends - now)::float8 END
FROM life
