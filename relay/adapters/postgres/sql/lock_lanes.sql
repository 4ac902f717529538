-- Take the locks of those lanes that no other publisher holds, until the end of the transaction. Beside them: how
-- often an event has been reopened, and when this server began, as another may have taken over.
SELECT lane, reopened.times, pg_postmaster_start_time()
FROM unnest(%(lanes)s::int[]) AS lane,
     (SELECT last_value + is_called::int AS times FROM relay_reopened) AS reopened
WHERE pg_try_advisory_xact_lock(1785882987, lane)
