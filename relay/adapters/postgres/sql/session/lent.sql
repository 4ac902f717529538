-- What a session that is lent to functions needs after the connect and after each reset: our claims run on it, and
-- the driver reads no other form of times. The order of day and month stays as the database has it.
SELECT set_config('DateStyle', 'ISO', false),
       set_config('IntervalStyle', 'postgres', false),
       set_config('default_transaction_read_only', 'off', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('idle_in_transaction_session_timeout', %(limit)s, false),
       set_config('statement_timeout', %(limit)s, false)
