-- The batches in the archive, without those that were deleted. With ``unannounced``: only batches whose manifest a
-- crash may have kept from storage.
SELECT kind, number, rows, size, sha256, first_id, first_at, last_id, last_at
FROM archive_batches
WHERE (announced_at IS NULL OR NOT %(unannounced)s)
  AND deleted_at IS NULL
ORDER BY kind, number
