-- Events that the broker, or the relay itself, refused, and that are tried again: how many, counted up to the limit,
-- how old the first is, and the most frequent reason. Those of a type that is paused are not refused.
SELECT count(*) AS count,
       coalesce(extract(epoch FROM clock_timestamp() - min(greatest(occurred_at, timestamptz '2000-01-01'))), 0)::float8
           AS seconds,
       coalesce(mode() WITHIN GROUP (ORDER BY coalesce(publish_error, 'no reason is recorded')), '') AS reason
FROM (
    SELECT occurred_at, publish_error
    FROM outbox_events
    WHERE published_at IS NULL AND publish_attempts > 0 AND dead_at IS NULL
      AND coalesce(publish_error, '') NOT LIKE 'EVENTS_PAUSED:%%'
    ORDER BY hashtext(partition_key), seq
    LIMIT %(counted)s) AS refused
