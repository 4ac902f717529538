-- Where a short look at messages ends, in each order in which `messages.sql` reads them; nothing where it sees all. It
-- sees so many rows from the newest on. With `until` it begins there, and goes both ways: a message that came before
-- may be processed after.
SELECT 'processed' AS read_in,
       (SELECT processed_at
        FROM inbox_messages
        WHERE processed_at IS NOT NULL
          AND (%(since)s::timestamptz IS NULL OR processed_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR processed_at < %(until)s)
        ORDER BY processed_at DESC
        OFFSET %(window)s
        LIMIT 1) AS since,
       (SELECT processed_at
        FROM inbox_messages
        WHERE %(until)s::timestamptz IS NOT NULL AND processed_at >= %(until)s
        ORDER BY processed_at
        OFFSET %(window)s
        LIMIT 1) AS until
WHERE 'processed' = ANY (%(statuses)s::text[])
UNION ALL
SELECT 'unfinished',
       (SELECT received_at
        FROM inbox_messages
        WHERE processed_at IS NULL
          AND (%(since)s::timestamptz IS NULL OR received_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR received_at < %(until)s)
        ORDER BY received_at DESC
        OFFSET %(window)s
        LIMIT 1),
       NULL
WHERE %(mixed)s::boolean
UNION ALL
SELECT 'failing',
       (SELECT received_at
        FROM inbox_messages
        WHERE num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL AND dead_lettered_at IS NULL
          AND (%(since)s::timestamptz IS NULL OR received_at >= %(since)s)
          AND (%(until)s::timestamptz IS NULL OR received_at < %(until)s)
        ORDER BY received_at DESC
        OFFSET %(window)s
        LIMIT 1),
       NULL
WHERE NOT %(mixed)s::boolean AND %(statuses)s::text[] && '{waiting,failing,running,parked,held}'
UNION ALL
SELECT 'dead',
       (SELECT dead_lettered_at
        FROM inbox_messages
        WHERE dead_lettered_at IS NOT NULL AND processed_at IS NULL
          AND (%(until)s::timestamptz IS NULL OR dead_lettered_at < %(until)s)
        ORDER BY dead_lettered_at DESC
        OFFSET %(window)s
        LIMIT 1),
       (SELECT dead_lettered_at
        FROM inbox_messages
        WHERE %(until)s::timestamptz IS NOT NULL AND dead_lettered_at >= %(until)s AND processed_at IS NULL
        ORDER BY dead_lettered_at
        OFFSET %(window)s
        LIMIT 1)
WHERE NOT %(mixed)s::boolean AND 'dead' = ANY (%(statuses)s::text[])
