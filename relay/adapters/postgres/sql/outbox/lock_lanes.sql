-- Lock those lanes that no other publisher holds, until the end of the transaction. If none is free, the lane is
-- NULL. Each row also says how often events were reopened, and since when this server runs without a crash. After
-- a crash, or after another server has taken over, sequence numbers may be given again. A crash resets the
-- statistics.
SELECT held.lane, reopened.times, greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time())
FROM (SELECT last_value + is_called::int AS times FROM relay_reopened) AS reopened
LEFT JOIN (
    SELECT lane
    FROM unnest(%(lanes)s::int[]) AS lane
    WHERE pg_try_advisory_xact_lock(relay_publisher_locks(), lane)) AS held ON true
