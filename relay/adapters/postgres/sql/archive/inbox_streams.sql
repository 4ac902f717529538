-- The streams that the received messages came from, with one index look-up for each.
WITH RECURSIVE found AS (
    (SELECT stream AS name
     FROM inbox_messages
     WHERE stream IS NOT NULL
     ORDER BY stream
     LIMIT 1)
    UNION ALL
    SELECT (SELECT stream
            FROM inbox_messages
            WHERE stream > found.name
            ORDER BY stream
            LIMIT 1)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
