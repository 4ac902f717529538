-- The batches in the archive. With ``unannounced``: only batches whose manifest a crash may have kept from
-- storage.
SELECT kind, number, rows, size, sha256, first_id, first_at, last_id, last_at
FROM archive_batches
WHERE announced_at IS NULL OR NOT %(unannounced)s
ORDER BY kind, number
