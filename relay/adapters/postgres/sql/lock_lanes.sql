-- Take the locks of those lanes that no other publisher holds, until the end of the transaction. Beside them, and
-- beside NULL if there is none: how often events have been reopened, and since when this server runs without having
-- crashed, as places may be given again after that, or by another that has taken over. A crash resets statistics.
SELECT held.lane, reopened.times, greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time())
FROM (SELECT last_value + is_called::int AS times FROM relay_reopened) AS reopened
LEFT JOIN (
    SELECT lane FROM unnest(%(lanes)s::int[]) AS lane WHERE pg_try_advisory_xact_lock(1785882987, lane)) AS held ON true
