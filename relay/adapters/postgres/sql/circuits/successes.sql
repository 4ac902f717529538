-- How many messages of a subscription were processed since a moment, and when the latest was, not before the earliest
-- failure. It reads what the context processed last, up to a limit.
SELECT count(*) FILTER (WHERE processed_at >= %(since)s) AS count, max(processed_at) AS latest
FROM (SELECT subscription, processed_at
      FROM inbox_messages
      WHERE processed_at IS NOT NULL AND processed_at >= %(earliest)s
      ORDER BY processed_at DESC
      LIMIT %(limit)s) AS newest
WHERE subscription = %(subscription)s
