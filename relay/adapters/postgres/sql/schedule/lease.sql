-- Who leads, or led last, and for how many seconds the lease has been over; less than 0 while it holds. No row if no
-- scheduler has led yet, or if the last one has ended properly.
SELECT who, extract(epoch FROM clock_timestamp() - expires_at)::float8
FROM scheduler_lease
WHERE holder IS NOT NULL AND expires_at IS NOT NULL
