-- What a worker counted since it last told it. `ago`: how long ago the middle of that time was, about.
INSERT INTO history_tallies (at, kind, name, failed, handling)
SELECT date_trunc('minute', clock_timestamp() - %(ago)s::interval), kind, name, failed, handling::jsonb
FROM unnest(%(kinds)s::text[], %(names)s::text[], %(failed)s::bigint[], %(handling)s::text[])
     AS it (kind, name, failed, handling)
