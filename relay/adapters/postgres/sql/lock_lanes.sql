-- Take the locks of those lanes that no other publisher holds, until the end of the transaction. Beside them, and
-- beside NULL if there is none: how often events have been reopened, and when this server began, as another may have
-- taken over.
SELECT held.lane, reopened.times, pg_postmaster_start_time()
FROM (SELECT last_value + is_called::int AS times FROM relay_reopened) AS reopened
LEFT JOIN (
    SELECT lane FROM unnest(%(lanes)s::int[]) AS lane WHERE pg_try_advisory_xact_lock(1785882987, lane)) AS held ON true
