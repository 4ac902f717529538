-- For each subscription: how many messages could be handled now or are being handled, counted up to the limit, and
-- for how long the oldest of those counted could have been. A row that waits for its next attempt has an
-- enqueued_at in the future; a row that waits for its turn has none. While the handler is away, none could be handled.
-- ORDER BY makes the planner use the index.
SELECT wanted.subscription, found.count, found.age_seconds
FROM unnest(%(subscriptions)s::text[]) AS wanted (subscription), LATERAL (
    SELECT count(*) AS count,
           greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0))::float8 AS age_seconds
    FROM (SELECT greatest(received_at, next_attempt_at) AS since
          FROM inbox_messages
          WHERE processed_at IS NULL
            AND dead_lettered_at IS NULL
            AND enqueued_at <= now()
            AND subscription = wanted.subscription
            AND EXISTS (SELECT FROM relay_may_call(NULL, wanted.subscription))
          ORDER BY enqueued_at
          LIMIT %(limit)s) AS due) AS found
