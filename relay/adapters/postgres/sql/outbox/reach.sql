-- Where a short look at events ends, in each order in which `events.sql` reads them; nothing where it sees all. It sees
-- so many rows from the newest on. With `until` it begins there, and goes both ways: an event that occurred before may
-- be published after. Without a filter, a look at waiting events passes over failed and delayed ones only, and a look at
-- delayed ones over failed ones. If these are few, it has no end: to find one, it would read its index twice, with all
-- that an old snapshot keeps there.
WITH passed AS (
    SELECT coalesce(%(event_type)s::text, %(aggregate_type)s, %(aggregate_id)s, %(partition_key)s,
                    %(payload_value)s) IS NOT NULL
           OR (SELECT count(*)
               FROM (SELECT
                     FROM outbox_events
                     WHERE published_at IS NULL AND publish_attempts > 0
                     ORDER BY hashtext(partition_key), seq
                     LIMIT %(window)s) AS failed) = %(window)s AS many
)
SELECT 'published' AS read_in,
       (SELECT published_at
        FROM outbox_events
        WHERE published_at IS NOT NULL
          AND (%(since)s::timestamptz IS NULL OR published_at >= %(since)s - interval '1 hour')
          AND (%(until)s::timestamptz IS NULL OR published_at < %(until)s)
        ORDER BY published_at DESC
        OFFSET %(window)s
        LIMIT 1) AS since,
       (SELECT published_at
        FROM outbox_events
        WHERE %(until)s::timestamptz IS NOT NULL AND published_at >= %(until)s
        ORDER BY published_at
        OFFSET %(window)s
        LIMIT 1) AS until
WHERE 'published' = ANY (%(statuses)s::text[]) AND %(error)s::text IS NULL
UNION ALL
SELECT 'waiting',
       (SELECT occurred_at
        FROM outbox_events
        WHERE published_at IS NULL
          AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR occurred_at < %(until)s)
        ORDER BY occurred_at DESC
        OFFSET %(window)s
        LIMIT 1),
       NULL
WHERE 'waiting' = ANY (%(statuses)s::text[]) AND %(error)s::text IS NULL
  AND ((SELECT many FROM passed)
       OR (SELECT count(*)
           FROM (SELECT
                 FROM outbox_events
                 WHERE published_at IS NULL AND dead_at IS NULL AND available_at > now()
                 ORDER BY available_at
                 LIMIT %(window)s) AS later) = %(window)s)
UNION ALL
SELECT 'delayed',
       NULL,
       (SELECT available_at
        FROM outbox_events
        WHERE published_at IS NULL AND dead_at IS NULL AND available_at > now()
        ORDER BY available_at
        OFFSET %(window)s
        LIMIT 1)
WHERE 'delayed' = ANY (%(statuses)s::text[]) AND %(error)s::text IS NULL AND (SELECT many FROM passed)
UNION ALL
SELECT 'dead',
       (SELECT dead_at
        FROM outbox_events
        WHERE dead_at IS NOT NULL AND published_at IS NULL
          AND (%(until)s::timestamptz IS NULL OR dead_at < %(until)s)
        ORDER BY dead_at DESC
        OFFSET %(window)s
        LIMIT 1),
       (SELECT dead_at
        FROM outbox_events
        WHERE %(until)s::timestamptz IS NOT NULL AND dead_at >= %(until)s AND published_at IS NULL
        ORDER BY dead_at
        OFFSET %(window)s
        LIMIT 1)
WHERE 'dead' = ANY (%(statuses)s::text[])
