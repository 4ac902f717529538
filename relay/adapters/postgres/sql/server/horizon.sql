-- What keeps removed row versions from being cleaned up: kind, name, for how long, and for how many transactions.
SELECT 'the transaction of ' || coalesce(nullif(application_name, ''), 'a session') || ', process ' || pid,
       extract(epoch FROM now() - xact_start)::float8, age(backend_xmin)::bigint
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
  AND xact_start < now() - %(longer)s::interval
UNION ALL
SELECT 'the prepared transaction ' || gid, extract(epoch FROM now() - prepared)::float8, age(transaction)::bigint
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < now() - %(longer)s::interval
UNION ALL
SELECT 'the replication slot ' || slot_name, NULL, greatest(age(xmin), age(catalog_xmin))::bigint
FROM pg_replication_slots
WHERE NOT active AND greatest(age(xmin), age(catalog_xmin)) > 1000000
ORDER BY 3 DESC
LIMIT 5
