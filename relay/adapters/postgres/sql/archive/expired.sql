-- Batches that were kept long enough, by the end of their newest row; and deleted batches whose files may still
-- exist.
SELECT kind, number, rows, size, sha256, first_id, first_at, last_id, last_at
FROM archive_batches
WHERE gone_at IS NULL
  AND announced_at IS NOT NULL
  AND (deleted_at IS NOT NULL OR last_at < now() - %(keep)s::interval)
ORDER BY kind, number
