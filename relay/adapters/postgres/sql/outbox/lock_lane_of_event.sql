-- Wait for the lane of one event. So publishing this event alone keeps the order of its key.
SELECT relay_lane(partition_key)
FROM outbox_events, LATERAL pg_advisory_xact_lock(relay_publisher_locks(), relay_lane(partition_key))
WHERE id = %(id)s AND partition_key <> ''
