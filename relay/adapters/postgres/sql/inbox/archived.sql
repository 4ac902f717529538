-- Which of these messages a subscription has in the archive: they were done. Rows that were archived before 0101 name no
-- subscription.
SELECT id
FROM unnest(%(subscription)s::text[], %(ids)s::uuid[]) AS asked (subscription, id)
WHERE EXISTS (
        SELECT FROM archived_messages AS a
        WHERE a.message_id = id AND a.source_id IS NULL
          AND (a.subscription IS NULL OR a.subscription = asked.subscription))
   OR EXISTS (
        SELECT FROM archived_messages AS a
        WHERE a.source_id = id AND a.subscription = asked.subscription)
