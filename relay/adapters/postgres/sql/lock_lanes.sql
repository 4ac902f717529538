-- Take the locks of those lanes that no other publisher holds, until the end of the transaction, and note which they
-- are for the statement that follows: it comes in the same round trip.
SELECT set_config('jetrelay.lanes', coalesce(array_agg(lane), '{}')::text, true)
FROM unnest(%(lanes)s::int[]) AS lane
WHERE pg_try_advisory_xact_lock(1785882987, lane)
