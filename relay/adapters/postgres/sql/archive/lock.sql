-- Allow one batch at a time. So batch numbers have no gaps, and each batch sees what the last one committed.
SELECT pg_try_advisory_xact_lock(relay_archive_locks(), 0)
