-- Open the claim transaction. The transaction is the lease: a process that is paused in it loses its
-- locks after five seconds and its commit fails. The statements of a claim read through indexes, in order, and
-- their plans are made once: a table that has just filled up has no statistics that would tell the planner so.
-- Sorting is off as well: where statistics say that hardly anything waits, the planner would read all that does by
-- the index of occurred_at, lane by lane, and sort it: much, if an old snapshot keeps what is published in there.
BEGIN;
SELECT set_config('idle_in_transaction_session_timeout', '5s', true),
       set_config('statement_timeout', '5s', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('jit', 'off', true)
