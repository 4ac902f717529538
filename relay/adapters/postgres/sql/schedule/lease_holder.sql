-- Who is the leader, if there is one.
SELECT who FROM scheduler_lease WHERE expires_at > clock_timestamp()
