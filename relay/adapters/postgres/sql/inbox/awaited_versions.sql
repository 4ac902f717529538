-- For each version of an event that messages wait for, because no worker that got them had a function for it: how many,
-- counted up to the limit, and for how long the first of them has been there. A subject tells the name of a command.
-- `name`: of one subscription; null for all.
SELECT subscription, event_type, event_version, min(subject) AS subject, count(*) AS count,
       extract(epoch FROM clock_timestamp() - min(received_at))::float8 AS seconds
FROM (
    SELECT subscription, event_type, event_version, subject, received_at
    FROM inbox_messages
    WHERE num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL
      AND last_error LIKE 'UNKNOWN\_VERSION:%%' AND dead_lettered_at IS NULL
      AND (%(name)s::text IS NULL OR subscription = %(name)s)
    ORDER BY received_at
    LIMIT %(counted)s) AS first
GROUP BY subscription, event_type, event_version
ORDER BY seconds DESC
