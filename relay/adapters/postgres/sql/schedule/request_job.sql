-- An operator wants a job to run now. The leader sees the request when it next renews its lease. A second request
-- joins the first.
UPDATE scheduled_jobs SET requested_at = coalesce(requested_at, clock_timestamp())
WHERE name = %(name)s AND removed_at IS NULL
RETURNING requested_at
