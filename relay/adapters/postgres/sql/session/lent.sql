-- What a session that is lent to functions needs after the connect and after each reset: the role that it has
-- logged in with, and what our claims, which run on it, and the driver rely on. The order of day and month stays as
-- the database has it.
SELECT set_config('session_authorization', NULL, false),
       set_config('DateStyle', 'ISO', false),
       set_config('IntervalStyle', 'postgres', false),
       set_config('array_nulls', 'on', false),
       set_config('default_transaction_read_only', 'off', false),
       set_config('default_transaction_deferrable', 'off', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('idle_in_transaction_session_timeout', %(limit)s, false),
       set_config('statement_timeout', (%(limit)s::int - least(1000, %(limit)s::int / 4))::text, false)
