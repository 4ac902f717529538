-- What the archive has of each kind: rows, bytes, and when the newest row of its oldest batch ended. A batch has up to
-- 20,000 rows, so there are few; of more than the limit only so many count.
SELECT kind, sum(rows)::bigint, sum(size)::bigint, min(last_at)
FROM (SELECT kind, rows, size, last_at FROM archive_batches WHERE deleted_at IS NULL LIMIT %(limit)s) AS batches
GROUP BY kind
