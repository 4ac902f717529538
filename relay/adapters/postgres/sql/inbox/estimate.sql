-- About how many messages are not processed, by the server's statistics.
EXPLAIN (FORMAT JSON) SELECT FROM inbox_messages WHERE processed_at IS NULL
