-- The files of a deleted batch are deleted.
UPDATE archive_batches SET gone_at = clock_timestamp()
WHERE kind = %(kind)s AND number = %(number)s AND deleted_at IS NOT NULL AND gone_at IS NULL
