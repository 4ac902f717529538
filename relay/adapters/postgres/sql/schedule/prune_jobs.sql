-- Delete jobs that have not been scheduled for a long time.
DELETE FROM scheduled_jobs WHERE removed_at < now() - %(keep)s
