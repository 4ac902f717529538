-- Record a minute once: what ended in it, by the times in the rows themselves; what workers tallied; and the levels
-- that were read just now. Each part reads its own index of what ended, so it costs what the minute held.
WITH ended AS (
    SELECT 'outbox' AS kind, '' AS name,
           extract(epoch FROM published_at
                   - CASE WHEN publish_attempts <= 1 THEN greatest(occurred_at, available_at) ELSE occurred_at END
                  )::float8 AS seconds
    FROM outbox_events
    WHERE published_at >= %(at)s AND published_at < %(at)s + interval '1 minute'
    UNION ALL
    SELECT 'subscription', subscription, extract(epoch FROM processed_at - received_at)::float8
    FROM inbox_messages
    WHERE processed_at >= %(at)s AND processed_at < %(at)s + interval '1 minute'
    UNION ALL
    SELECT 'task', type, extract(epoch FROM finished_at - greatest(created_at, available_at))::float8
    FROM task_outbox
    WHERE finished_at >= %(at)s AND finished_at < %(at)s + interval '1 minute' AND status = 'completed'
), bucketed AS (
    SELECT kind, name, bucket, count(*) AS n
    FROM (SELECT kind, name,
                 CASE WHEN seconds <= 0.001 THEN 0
                      ELSE least(%(buckets)s, ceil(ln(seconds * 1000) * %(per_e)s::float8))::int END AS bucket
          FROM ended
          WHERE name IS NOT NULL) AS each
    GROUP BY kind, name, bucket
), done AS (
    SELECT kind, name, sum(n) AS done, jsonb_object_agg(bucket, n) AS waited FROM bucketed GROUP BY kind, name
), died AS (
    SELECT 'outbox' AS kind, '' AS name, count(*) AS died
    FROM outbox_events
    WHERE dead_at >= %(at)s AND dead_at < %(at)s + interval '1 minute' AND published_at IS NULL
    UNION ALL
    SELECT 'subscription', subscription, count(*)
    FROM inbox_messages
    WHERE dead_lettered_at >= %(at)s AND dead_lettered_at < %(at)s + interval '1 minute'
      AND subscription IS NOT NULL
    GROUP BY subscription
    UNION ALL
    SELECT 'task', type, count(*)
    FROM task_outbox
    WHERE finished_at >= %(at)s AND finished_at < %(at)s + interval '1 minute' AND status = 'failed'
    GROUP BY type
), told AS (
    -- What came too late for its own minute counts for this one. What nobody recorded for long is dropped.
    DELETE FROM history_tallies WHERE at <= %(at)s RETURNING at, kind, name, failed, handling
), fresh AS (
    SELECT kind, name, failed, handling FROM told WHERE at > %(at)s - interval '5 minutes'
), failures AS (
    SELECT kind, name, sum(failed) AS failed FROM fresh GROUP BY kind, name
), handled AS (
    SELECT kind, name, jsonb_object_agg(bucket, n) AS handling
    FROM (SELECT kind, name, one.key AS bucket, sum(one.value::bigint) AS n
          FROM fresh, LATERAL jsonb_each_text(handling) AS one
          GROUP BY kind, name, one.key) AS each
    GROUP BY kind, name
), levels AS (
    SELECT kind, name, waiting, oldest_seconds, dead
    FROM unnest(%(kinds)s::text[], %(names)s::text[], %(waiting)s::bigint[], %(oldest)s::float8[],
                %(dead)s::bigint[]) AS it (kind, name, waiting, oldest_seconds, dead)
), known AS (
    SELECT kind, name FROM done
    UNION SELECT kind, name FROM died WHERE died > 0
    UNION SELECT kind, name FROM failures
    UNION SELECT kind, name FROM levels
)
INSERT INTO history (step, kind, name, at, done, failed, died, waiting, oldest_seconds, dead, handling, waited)
SELECT 'minute', kind, name, %(at)s, coalesce(done, 0), coalesce(failed, 0), coalesce(died, 0), coalesce(waiting, 0),
       coalesce(oldest_seconds, 0), coalesce(dead, 0), coalesce(handling, '{}'), coalesce(waited, '{}')
FROM known
LEFT JOIN done USING (kind, name)
LEFT JOIN died USING (kind, name)
LEFT JOIN failures USING (kind, name)
LEFT JOIN handled USING (kind, name)
LEFT JOIN levels USING (kind, name)
ON CONFLICT DO NOTHING
