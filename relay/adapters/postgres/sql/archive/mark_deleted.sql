-- From now on nobody uses the batch. Whoever marks it first records who did.
UPDATE archive_batches SET deleted_at = clock_timestamp()
WHERE kind = %(kind)s AND number = %(number)s AND deleted_at IS NULL
