-- Tasks that match a filter, the newest first, and how many match in all, counted up to a limit. Each state is read by
-- an index of its own. Of more waiting tasks than are counted, those that come first are found. A task ends after it
-- was made: an hour is more than clocks differ. `reach.sql` says where a short look at finished ones ends.
-- `from_oldest` turns it round.
WITH matching AS NOT MATERIALIZED (
    SELECT id, seq, queue, priority, status,
           CASE WHEN status = 'cancelled' AND expires_at <= finished_at THEN 'expired' ELSE status END AS ended,
           claimed_until, available_at, enqueued_at, finished_at
    FROM task_outbox
    WHERE (%(type)s::text IS NULL OR type LIKE %(type)s)
      AND (%(queue)s::text IS NULL OR queue = %(queue)s)
      AND (%(correlation_id)s::uuid IS NULL OR correlation_id = %(correlation_id)s)
      AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
      AND (%(error)s::text IS NULL OR last_error ~ %(error)s AND NOT last_error ~ ANY (%(unless)s::text[]))
), found AS MATERIALIZED (
    (SELECT id, seq, ended AS status
     FROM matching
     WHERE %(statuses)s::text[] && '{completed,cancelled,expired}' AND ended = ANY (%(statuses)s::text[])
       AND status IN ('completed', 'cancelled') AND finished_at IS NOT NULL
       AND (%(since)s::timestamptz IS NULL OR finished_at >= %(since)s - interval '1 hour')
       AND (%(finished_since)s::timestamptz IS NULL OR finished_at >= %(finished_since)s)
       AND (%(finished_until)s::timestamptz IS NULL OR finished_at <= %(finished_until)s)
     ORDER BY finished_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, status
     FROM matching
     WHERE 'failed' = ANY (%(statuses)s::text[]) AND status = 'failed'
     ORDER BY seq DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, CASE WHEN claimed_until >= now() THEN 'running' ELSE 'delivered' END
     FROM matching
     WHERE %(statuses)s::text[] && '{delivered,running}' AND status = 'delivered'
       AND CASE WHEN claimed_until >= now() THEN 'running' ELSE 'delivered' END = ANY (%(statuses)s::text[])
     ORDER BY queue, enqueued_at
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'pending'
     FROM matching
     WHERE 'pending' = ANY (%(statuses)s::text[]) AND status = 'pending' AND available_at IS NULL
     ORDER BY queue, priority, seq
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'pending'
     FROM matching
     WHERE 'pending' = ANY (%(statuses)s::text[]) AND status = 'pending' AND available_at IS NOT NULL
     ORDER BY queue, available_at
     LIMIT %(counted)s)
), page AS MATERIALIZED (
    SELECT id, status AS state
    FROM found
    WHERE %(before)s::bigint IS NULL OR seq < %(before)s
    ORDER BY seq DESC
    LIMIT %(limit)s
)
SELECT id, seq, type, queue, priority, state AS status, waits_for, created_at, available_at, delivered_at,
       started_at, finished_at, next_attempt_at, attempts, last_error, correlation_id::text, causation_id::text,
       originals, concurrency_key, nullif(expires_at, 'infinity') AS expires_at, least(%(counted)s, (SELECT count(*) FROM found)) AS total
FROM page JOIN task_outbox USING (id)
ORDER BY seq DESC
