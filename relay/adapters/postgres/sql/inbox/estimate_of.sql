-- About how many messages of a subscription wait, by the server's statistics.
EXPLAIN (FORMAT JSON) SELECT
FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %(subscription)s
