-- The streams that hold published events, with one index look-up for each.
WITH RECURSIVE found AS (
    (SELECT published_stream AS name
     FROM outbox_events
     WHERE published_seq IS NOT NULL
     ORDER BY published_stream
     LIMIT 1)
    UNION ALL
    SELECT (SELECT published_stream
            FROM outbox_events
            WHERE published_seq IS NOT NULL AND published_stream > found.name
            ORDER BY published_stream
            LIMIT 1)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
