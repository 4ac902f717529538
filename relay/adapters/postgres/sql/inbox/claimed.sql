-- Messages that run now, by the oldest unfinished ones: a claim takes the oldest first, as far as their order allows.
-- Looks at no more than %(looked)s of them.
SELECT 'message' AS kind, coalesce(originals ->> 'id', message_id::text) AS id, message_id::text AS row_id,
       subscription AS part, event_type AS name, attempts, claim_token, claimed_until, NULL::timestamptz AS started_at
FROM (
    SELECT message_id, originals, subscription, event_type, attempts, claim_token, claimed_until
    FROM inbox_messages
    WHERE processed_at IS NULL
    ORDER BY received_at
    LIMIT %(looked)s) AS oldest
WHERE claimed_until >= now() AND claim_token IS NOT NULL
LIMIT %(limit)s
