-- The manifest of a batch may be missing from now on.
UPDATE archive_batches SET announced_at = NULL
WHERE kind = %(kind)s AND number = %(number)s AND sha256 = %(sha256)s AND deleted_at IS NULL
