-- Dead letters of the last day that have been in the DLQ stream for longer than %(bound)s, and are no incidents yet.
-- Only the last dead messages are looked at.
SELECT '' AS part, count(*) AS due,
       coalesce(extract(epoch FROM clock_timestamp() - min(dead_lettered_at)), 0)::float8 AS due_seconds,
       coalesce((array_agg(message_id::text ORDER BY dead_lettered_at))[1], '') AS head,
       NULL::float8 AS moved_seconds, false AS overtaken
FROM (
    SELECT message_id, dead_lettered_at
    FROM inbox_messages
    WHERE dead_lettered_at IS NOT NULL
      AND dead_lettered_at BETWEEN clock_timestamp() - interval '1 day' AND clock_timestamp() - %(bound)s::interval
    ORDER BY dead_lettered_at DESC
    LIMIT %(counted)s) AS dead
WHERE NOT EXISTS (SELECT FROM dead_letters AS letter WHERE letter.message_id = dead.message_id)
HAVING count(*) > 0
