-- An attempt of a publisher that is not ours has failed.
UPDATE outbox_events
SET publish_attempts = least(publish_attempts, 2147483646) + 1, publish_error = %(error)s
WHERE id = %(id)s AND num_nonnulls(published_at) = 0
