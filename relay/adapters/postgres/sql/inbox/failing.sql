-- For each subscription with messages that failed and are tried again: how many, counted up to the limit, for how long
-- the first of them has been there, the most frequent reason, and how many of its messages were handled within
-- %(bound)s. Of handled messages only the last ones are looked at.
SELECT failing.subscription, failing.count, failing.seconds::float8 AS seconds, failing.reason,
       coalesce(handled.count, 0) AS handled
FROM (
    SELECT subscription, count(*) AS count, extract(epoch FROM clock_timestamp() - min(received_at)) AS seconds,
           mode() WITHIN GROUP (ORDER BY coalesce(last_error, dead_letter_reason, '')) AS reason
    FROM (
        SELECT subscription, received_at, last_error, dead_letter_reason
        FROM inbox_messages
        WHERE num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL
          AND dead_lettered_at IS NULL AND next_attempt_at IS DISTINCT FROM 'infinity'
          AND coalesce(last_error, '') NOT LIKE 'UNKNOWN\_VERSION:%%'
        ORDER BY received_at
        LIMIT %(counted)s) AS first
    GROUP BY subscription) AS failing
LEFT JOIN (
    SELECT subscription, count(*) AS count
    FROM (
        SELECT subscription
        FROM inbox_messages
        WHERE processed_at IS NOT NULL AND processed_at > clock_timestamp() - %(bound)s::interval
        ORDER BY processed_at DESC
        LIMIT %(looked)s) AS ended
    GROUP BY subscription) AS handled USING (subscription)
