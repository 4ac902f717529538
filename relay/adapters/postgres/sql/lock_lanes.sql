-- Take the locks of those lanes that no other publisher holds, until the end of the transaction.
SELECT lane
FROM unnest(%(lanes)s::int[]) AS lane
WHERE pg_try_advisory_xact_lock(1785882987, lane)
