-- Release the advisory locks that a function has left to the session.
SELECT pg_advisory_unlock_all()
