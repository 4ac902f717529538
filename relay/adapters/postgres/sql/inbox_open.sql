-- Whether a subscription has messages that have not come to their end. Asked for in the order of the index: to find
-- one, a table full of finished rows might be read from its beginning.
SELECT 1
FROM inbox_messages
WHERE processed_at IS NULL
  AND dead_lettered_at IS NULL
  AND subscription = %(subscription)s
ORDER BY enqueued_at
LIMIT 1
