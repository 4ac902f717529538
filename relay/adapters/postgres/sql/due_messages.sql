-- How many rows of a subscription could be handled now or are being handled, counted up to a limit. Rows
-- that wait for their next attempt have their enqueued_at in the future. Asked for in the order of the index:
-- to find any, a table full of finished rows might be read from its beginning.
SELECT count(*)
FROM (
    SELECT 1
    FROM inbox_messages
    WHERE processed_at IS NULL
      AND dead_lettered_at IS NULL
      AND enqueued_at <= now()
      AND subscription = %(subscription)s
    ORDER BY enqueued_at
    LIMIT %(limit)s) AS due
