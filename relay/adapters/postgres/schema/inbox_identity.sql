-- Which row of the inbox is that of a message. A message is known by its subscription and its id. Usually the id is the
-- key of the row. If a row of another subscription has that key, the row of this one has a key made from both
-- (relay/domain/identity.py), and `source_id` keeps the id. NULL almost everywhere.

-- The key of a message's row: that of the row which its subscription has, or else the one under which to insert it.
-- `own_id`: the key to take if the message is not known by its id; NULL if it may take its id. NULL as the answer:
-- the message is in the archive, so it was done; or another message has its id, and there is no own_id.
--
-- OFFSET 0 keeps the look-ups: each is made once, by its key.
CREATE FUNCTION relay_inbox_key(of_id UUID, of_subscription TEXT, own_id UUID)
RETURNS TABLE (key UUID) LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT CASE
           WHEN looked.archived OR looked.archived_apart THEN NULL
           WHEN looked.held THEN of_id
           WHEN looked.apart IS NOT NULL THEN looked.apart
           WHEN own_id IS NOT NULL THEN own_id
           WHEN num_nonnulls(looked.held, looked.archived) = 0 THEN of_id
         END
  FROM (
    SELECT (SELECT i.source_id IS NULL AND (i.subscription IS NULL OR i.subscription = of_subscription)
            FROM inbox_messages AS i
            WHERE i.message_id = of_id) AS held,
           (SELECT a.source_id IS NULL AND (a.subscription IS NULL OR a.subscription = of_subscription)
            FROM archived_messages AS a
            WHERE a.message_id = of_id) AS archived,
           (SELECT i.message_id
            FROM inbox_messages AS i
            WHERE i.source_id = of_id AND i.subscription = of_subscription
            LIMIT 1) AS apart,
           EXISTS (
             SELECT
             FROM archived_messages AS a
             WHERE a.source_id = of_id AND a.subscription = of_subscription) AS archived_apart
    OFFSET 0) AS looked;
END;
