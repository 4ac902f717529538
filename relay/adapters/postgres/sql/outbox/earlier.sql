-- Why an event was not claimed: whether it is published, and the first earlier event of its key that it waits for.
SELECT e.published_at IS NOT NULL AND e.dead_at IS NULL, (
    SELECT coalesce(earlier.originals ->> 'id', earlier.id::text)
    FROM outbox_events AS earlier
    WHERE e.partition_key <> ''
      AND earlier.partition_key = e.partition_key
      AND earlier.seq < e.seq
      AND earlier.published_at IS NULL
      AND relay_holds_back(earlier.generation, earlier.dead_at, e.generation, %(dead_head_blocks)s)
      AND (earlier.available_at IS NULL OR earlier.publish_attempts > 0)
    ORDER BY earlier.seq
    LIMIT 1)
FROM outbox_events AS e
WHERE e.id = %(id)s
