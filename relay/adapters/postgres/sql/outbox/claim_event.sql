-- Claim one unpublished event for CMD-050, unless an earlier event of its key is unpublished. A dead one counts
-- only under dead_head = 'block'.
SELECT id::text, event_type, event_version, payload::text,
       to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       correlation_id::text, causation_id::text, partition_key, topic, headers::text,
       publish_attempts, generation, originals::text, stream, seq,
       to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM outbox_events AS e
WHERE e.id = %(id)s
  AND e.published_at IS NULL
  AND (e.partition_key = '' OR NOT EXISTS (
      SELECT 1
      FROM outbox_events AS earlier
      WHERE earlier.partition_key = e.partition_key
        AND earlier.seq < e.seq
        AND earlier.published_at IS NULL
        AND relay_holds_back(earlier.generation, earlier.dead_at, e.generation, %(dead_head_blocks)s)
        AND (earlier.available_at IS NULL OR earlier.publish_attempts > 0)))
FOR UPDATE
