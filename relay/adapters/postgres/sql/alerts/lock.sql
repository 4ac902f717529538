-- One sender of a context at a time, until its transaction ends.
SELECT pg_try_advisory_xact_lock(relay_alert_locks(), hashtext(current_schema()))
