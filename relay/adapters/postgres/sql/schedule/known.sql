-- Whether a job is on record, even one that was removed.
SELECT true FROM scheduled_jobs WHERE name = %(name)s
