-- A batch has another file, with the same rows.
UPDATE archive_batches SET size = %(size)s, sha256 = %(sha256)s, announced_at = NULL
WHERE kind = %(kind)s AND number = %(number)s AND sha256 = %(former)s AND deleted_at IS NULL
