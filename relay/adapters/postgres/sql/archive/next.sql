-- The number of the next batch. A number whose batch was not committed is used again.
SELECT coalesce(max(number), 0) + 1 FROM archive_batches WHERE kind = %(kind)s
