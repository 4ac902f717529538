-- The same behind a pooler: it keeps these for each of its clients, and all others would reach other clients.
SELECT set_config('DateStyle', 'ISO', false),
       set_config('TimeZone', 'UTC', false),
       set_config('IntervalStyle', 'postgres', false)
