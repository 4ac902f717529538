-- The number of the next batch. One that was not committed is given out again.
SELECT coalesce(max(number), 0) + 1 FROM archive_batches WHERE kind = %(kind)s
