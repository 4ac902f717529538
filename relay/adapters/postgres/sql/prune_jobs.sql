-- Forget jobs that have not been scheduled for long.
DELETE FROM scheduled_jobs WHERE removed_at < now() - %(keep)s
