-- What a session of ours needs, whatever the database, our role or the environment says. How long statements and locks
-- may take, their owners decide.
SELECT set_config('DateStyle', 'ISO', false),
       set_config('TimeZone', 'UTC', false),
       set_config('IntervalStyle', 'postgres', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('default_transaction_read_only', 'off', false),
       set_config('default_transaction_deferrable', 'off', false),
       set_config('array_nulls', 'on', false),
       set_config('standard_conforming_strings', 'on', false),
       set_config('extra_float_digits', '1', false),
       set_config('bytea_output', 'hex', false)
