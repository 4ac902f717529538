-- As due_messages, for an ordered subscription: what waits for its turn counts too, so that a key that
-- stands still holds back fetching in the end. What is parked does not.
SELECT count(*)
FROM (
    (SELECT 1
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at <= now()
       AND subscription = %(subscription)s
     ORDER BY enqueued_at
     LIMIT %(limit)s)
    UNION ALL
    (SELECT 1
     FROM inbox_messages
     WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND enqueued_at IS NULL
       AND subscription = %(subscription)s
     ORDER BY enqueued_at
     LIMIT %(limit)s)) AS due
