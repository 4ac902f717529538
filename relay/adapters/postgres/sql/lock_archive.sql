-- One batch at a time: their numbers have no gaps, and each is judged by what was committed before.
SELECT pg_try_advisory_xact_lock(1785882991, 0)
