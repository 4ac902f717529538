-- Ended rows that should have left for the archive, by kind and stream, among the oldest of each kind: rows that were
-- due for longer than the bound. A row that was restored, or is due since the archive was switched on, has as long.
-- Where later rows left and this one did not, its stream is held back.
WITH due AS MATERIALIZED (
    (SELECT 'outbox' AS kind, published_stream AS stream, id::text AS head, published_at AS ended_at
     FROM outbox_events
     WHERE published_at < now() - %(age)s::interval - %(bound)s::interval
     ORDER BY published_at
     LIMIT %(counted)s)
    UNION ALL
    SELECT 'inbox', stream, head, ended_at
    FROM (
        SELECT stream, message_id::text AS head, processed_at AS ended_at
        FROM inbox_messages
        WHERE processed_at < now() - %(age)s::interval - %(bound)s::interval
        ORDER BY processed_at
        LIMIT %(counted)s) AS message
    WHERE stream IS NOT NULL
    UNION ALL
    (SELECT 'tasks', NULL, id::text, finished_at
     FROM task_outbox
     WHERE finished_at < now() - %(age)s::interval - %(bound)s::interval
       AND status IN ('completed', 'failed', 'cancelled')
     ORDER BY finished_at
     LIMIT %(counted)s)
), part AS MATERIALIZED (
    SELECT kind, stream, count(*) AS due, min(ended_at) AS since, (array_agg(head ORDER BY ended_at))[1] AS head
    FROM due
    GROUP BY kind, stream
), begun AS (
    SELECT greatest((SELECT registered_at FROM scheduled_jobs WHERE name = %(job)s AND removed_at IS NULL),
                    (SELECT max(at) FROM audit_log
                     WHERE at > now() - %(bound)s::interval AND action = 'archive.restore')) AS at
)
SELECT part.kind || coalesce('/' || part.stream, '') AS part, part.due,
       extract(epoch FROM now() - part.since - %(age)s::interval)::float8 AS due_seconds, part.head,
       extract(epoch FROM now() - greatest(last.archived_at, begun.at))::float8 AS moved_seconds,
       coalesce(last.first_at > part.since AND (begun.at IS NULL OR begun.at < last.archived_at), false) AS overtaken
FROM part
CROSS JOIN begun
LEFT JOIN LATERAL (
    SELECT archived_at, first_at
    FROM archive_batches
    WHERE kind = part.kind
    ORDER BY number DESC
    LIMIT 1) AS last ON true
ORDER BY part
