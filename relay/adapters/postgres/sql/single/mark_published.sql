-- CMD-050's state changes, for one event whose publisher is not ours.
UPDATE outbox_events
SET published_at = clock_timestamp(), publish_attempts = least(publish_attempts, 2147483646) + 1, publish_error = NULL, dead_at = NULL
WHERE id = %(id)s AND num_nonnulls(published_at) = 0
