-- The circuit of a subscription, locked; and the time of the database.
SELECT witnesses, since, failed, opened_at, closed_at, reason, probe_id, probe_at, probes, clock_timestamp() AS now
FROM handler_circuits
WHERE subscription = %(subscription)s
FOR UPDATE
