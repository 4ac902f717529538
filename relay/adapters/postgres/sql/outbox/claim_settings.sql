-- The settings of a claim. The transaction is the lease: a process that pauses in it loses its locks after five
-- seconds, and its commit fails. The statements of a claim read through indexes, in order, and are planned once.
-- The planner cannot know this from statistics: a table that has just filled up has none. Sorting is off too. If
-- statistics say that hardly anything waits, the planner would read all that waits by the index of occurred_at,
-- for each lane, and sort it. That is much when an old snapshot keeps published entries in this index. Rows are not
-- memoized: that would copy large events.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true),
       set_config('statement_timeout', '5s', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('enable_memoize', 'off', true),
       set_config('jit', 'off', true)
