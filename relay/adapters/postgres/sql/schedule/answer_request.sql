-- The leader has done what an operator asked for. A newer request stays.
UPDATE scheduled_jobs SET requested_at = NULL WHERE name = %(name)s AND requested_at = %(requested_at)s
