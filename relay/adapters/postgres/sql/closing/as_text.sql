-- Two servers write the same values in the same way.
SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), set_config('bytea_output', 'hex', false),
       set_config('IntervalStyle', 'postgres', false), set_config('extra_float_digits', '1', false)
