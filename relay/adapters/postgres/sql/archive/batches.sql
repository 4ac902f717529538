-- The batches in the archive, without those that were deleted. With ``unannounced``: only batches whose manifest a
-- crash may have kept from storage. With ``newest``: the newest first.
SELECT kind, number, rows, size, left(sha256, 64) AS sha256, first_id, first_at, last_id, last_at
FROM archive_batches
WHERE (announced_at IS NULL OR NOT %(unannounced)s)
  AND deleted_at IS NULL
ORDER BY CASE WHEN %(newest)s THEN kind END DESC, CASE WHEN %(newest)s THEN number END DESC, kind, number
LIMIT %(limit)s OFFSET %(offset)s
