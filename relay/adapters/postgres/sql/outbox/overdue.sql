-- For how long the most overdue event has waited. Back-off counts as waiting; a requested delay does not, until
-- the event fails. An event of a type that is paused is not due. Each part reads its own index, and no more of it than the limit.
SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(due)), 0))::float8 AS seconds
FROM (
    (SELECT occurred_at AS due
     FROM outbox_events
     WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
     ORDER BY occurred_at
     LIMIT 1)
    UNION ALL
    (SELECT occurred_at
     FROM outbox_events
     WHERE published_at IS NULL AND dead_at IS NULL AND publish_attempts > 0
       AND coalesce(publish_error, '') NOT LIKE 'EVENTS_PAUSED:%%'
     ORDER BY hashtext(partition_key), seq
     LIMIT %(limit)s)
    UNION ALL
    (SELECT greatest(occurred_at, available_at)
     FROM outbox_events
     WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= clock_timestamp()
     ORDER BY available_at
     LIMIT %(limit)s)
) AS waiting
WHERE due <= clock_timestamp()
