-- Wait for the lane of one event. So publishing this event alone keeps the order of its key.
SELECT hashtext(partition_key) & 63
FROM outbox_events, LATERAL pg_advisory_xact_lock(1785882987, hashtext(partition_key) & 63)
WHERE id = %(id)s AND partition_key <> ''
