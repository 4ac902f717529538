-- The manifest of a batch is stored.
UPDATE archive_batches SET announced_at = clock_timestamp()
WHERE kind = %(kind)s AND number = %(number)s AND announced_at IS NULL
