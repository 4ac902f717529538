-- From now on no process uses the batch. The first process that marks it records this.
UPDATE archive_batches SET deleted_at = clock_timestamp()
WHERE kind = %(kind)s AND number = %(number)s AND deleted_at IS NULL
