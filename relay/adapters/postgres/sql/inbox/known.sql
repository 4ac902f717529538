-- Which of these messages the inbox holds, or held before they were archived, for a subscription. What belongs to one
-- of the others does not count. A row without a subscription counts, and one whose subscription is gone: after a rename
-- nothing was lost.
SELECT message_id
FROM inbox_messages
WHERE message_id = ANY (%(ids)s::uuid[]) AND source_id IS NULL
  AND (subscription = ANY (%(others)s::text[])) IS NOT TRUE
UNION
SELECT source_id
FROM inbox_messages
WHERE source_id = ANY (%(ids)s::uuid[]) AND (subscription = ANY (%(others)s::text[])) IS NOT TRUE
UNION
SELECT message_id
FROM archived_messages
WHERE message_id = ANY (%(ids)s::uuid[]) AND source_id IS NULL
  AND (subscription = ANY (%(others)s::text[])) IS NOT TRUE
UNION
SELECT source_id
FROM archived_messages
WHERE source_id = ANY (%(ids)s::uuid[]) AND (subscription = ANY (%(others)s::text[])) IS NOT TRUE
