-- Batches whose newest row ended longer ago than they are kept, and deleted ones whose files may still be there.
SELECT kind, number, rows, size, sha256, first_id, first_at, last_id, last_at
FROM archive_batches
WHERE gone_at IS NULL
  AND announced_at IS NOT NULL
  AND (deleted_at IS NOT NULL OR last_at < now() - %(keep)s::interval)
ORDER BY kind, number
