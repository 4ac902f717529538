-- Who leads, if anybody does.
SELECT who FROM scheduler_lease WHERE expires_at > clock_timestamp()
