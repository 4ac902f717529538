-- Outbox events that match a filter, the newest first, and how many match in all, counted up to a limit. Each state
-- is read by its own index, so a page does not read all that is in the table: the newest of it first. Of failing
-- events beyond the limit of the count, those of the first keys; of delayed ones, those that are due first. Only dead
-- and failing events have an error. An event is published after it occurred, and clocks differ by less than an hour.
-- `reach.sql` says where a short look ends in each order. `coalesce`: a plan takes a pattern that it does not know for
-- one that hardly any row fits.
-- `from_oldest` turns it round.
WITH matching AS NOT MATERIALIZED (
    SELECT id, seq, partition_key, occurred_at, published_at, publish_attempts, dead_at, available_at, expires_at
    FROM outbox_events
    WHERE (%(event_type)s::text IS NULL OR event_type LIKE %(event_type)s)
      AND (%(aggregate_type)s::text IS NULL OR aggregate_type = %(aggregate_type)s)
      AND (%(aggregate_id)s::text IS NULL OR aggregate_id = %(aggregate_id)s)
      AND (%(partition_key)s::text IS NULL OR partition_key = %(partition_key)s)
      AND (%(payload_path)s::text[] IS NULL
           OR coalesce(payload #>> %(payload_path)s::text[] = %(payload_value)s::text, false))
      AND (%(correlation_id)s::uuid IS NULL OR correlation_id = %(correlation_id)s)
      AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR occurred_at < %(until)s)
      AND (%(error)s::text IS NULL
           OR coalesce(publish_error ~ %(error)s AND NOT publish_error ~ ANY (%(unless)s::text[]), false))
), found AS MATERIALIZED (
    (SELECT id, seq, 'published' AS status
     FROM matching
     WHERE 'published' = ANY (%(statuses)s::text[]) AND published_at IS NOT NULL AND dead_at IS NULL
       AND %(error)s::text IS NULL
       AND (%(since)s::timestamptz IS NULL OR published_at >= %(since)s - interval '1 hour')
       AND (%(published_since)s::timestamptz IS NULL OR published_at >= %(published_since)s)
       AND (%(published_until)s::timestamptz IS NULL OR published_at <= %(published_until)s)
     ORDER BY published_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'discarded'
     FROM matching
     WHERE 'discarded' = ANY (%(statuses)s::text[]) AND published_at IS NOT NULL AND dead_at IS NOT NULL
       AND coalesce(expires_at > dead_at, true)
     ORDER BY dead_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'expired'
     FROM matching
     WHERE 'expired' = ANY (%(statuses)s::text[]) AND published_at IS NOT NULL AND expires_at <= dead_at
     ORDER BY dead_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'dead'
     FROM matching
     WHERE 'dead' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND dead_at IS NOT NULL
       AND (%(dead_since)s::timestamptz IS NULL OR dead_at >= %(dead_since)s)
       AND (%(dead_until)s::timestamptz IS NULL OR dead_at <= %(dead_until)s)
     ORDER BY dead_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'failing'
     FROM matching
     WHERE 'failing' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND dead_at IS NULL
       AND publish_attempts > 0
     ORDER BY hashtext(partition_key), seq
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'waiting'
     FROM matching
     WHERE 'waiting' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND dead_at IS NULL
       AND publish_attempts = 0 AND %(error)s::text IS NULL AND coalesce(available_at <= now(), true)
       AND (%(waiting_since)s::timestamptz IS NULL OR occurred_at >= %(waiting_since)s)
       AND (%(waiting_until)s::timestamptz IS NULL OR occurred_at <= %(waiting_until)s)
     ORDER BY occurred_at DESC
     LIMIT %(counted)s)
    UNION ALL
    (SELECT id, seq, 'delayed'
     FROM matching
     WHERE 'delayed' = ANY (%(statuses)s::text[]) AND published_at IS NULL AND dead_at IS NULL
       AND publish_attempts = 0 AND %(error)s::text IS NULL AND available_at > now()
       AND (%(delayed_until)s::timestamptz IS NULL OR available_at <= %(delayed_until)s)
     ORDER BY available_at
     LIMIT %(counted)s)
), page AS MATERIALIZED (
    SELECT id, status
    FROM found
    WHERE %(before)s::bigint IS NULL OR seq < %(before)s
    ORDER BY seq DESC
    LIMIT %(limit)s
)
SELECT id, seq, aggregate_type, aggregate_id, event_type, event_version, occurred_at,
       correlation_id::text, causation_id::text, originals, partition_key, topic, stream,
       published_at, publish_attempts, publish_error, available_at, nullif(expires_at, 'infinity') AS expires_at, dead_at,
       published_stream, published_seq, generation, page.status, least(%(counted)s, (SELECT count(*) FROM found)) AS total
FROM page JOIN outbox_events USING (id)
ORDER BY seq DESC
