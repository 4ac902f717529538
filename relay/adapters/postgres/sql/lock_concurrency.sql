-- One at a time counts and claims tasks of a key. Not in one statement with the count, which would then see
-- the table as it was before the wait.
SELECT pg_advisory_xact_lock(1785882990, hashtext(%(key)s))
