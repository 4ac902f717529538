-- Lock those lanes that no other publisher holds, until the end of the transaction, and note them for the claim that
-- may follow in the same round trip. If none is free, the lane is NULL. Each row also says how often events were
-- reopened, since when this server runs without a crash, and which sequence in which database numbers events, and how
-- far. After a crash, after another server has taken over, or after a backup was put back, numbers may be given again.
-- A crash resets the statistics.
WITH held AS MATERIALIZED (
    SELECT lane
    FROM unnest(%(lanes)s::int[]) AS lane
    WHERE pg_try_advisory_xact_lock(relay_publisher_locks(), lane)
),
told AS MATERIALIZED (
    SELECT set_config('relay.held_lanes', coalesce(array_agg(lane), '{}')::text, true) FROM held
)
SELECT held.lane, reopened.times, greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time()),
       pg_relation_filepath('outbox_events_seq_seq'), (SELECT last_value FROM outbox_events_seq_seq)
FROM (SELECT last_value + is_called::int AS times FROM relay_reopened) AS reopened
CROSS JOIN told
LEFT JOIN held ON true
