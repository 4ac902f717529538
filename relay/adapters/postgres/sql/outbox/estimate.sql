-- About how many events are not published, by the server's statistics.
EXPLAIN (FORMAT JSON) SELECT FROM outbox_events WHERE published_at IS NULL
