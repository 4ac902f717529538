-- What operators did, the newest first. An action that changed many rows has its first hundred ids, in a long page
-- fewer, and their number.
SELECT id, at, actor, action, note,
       ARRAY(SELECT left(it, 200) FROM unnest(ids[1:greatest(10, least(100, 10000 / %(limit)s))]) AS it) AS ids,
       cardinality(ids) AS count
FROM audit_log
WHERE (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(actor)s::text IS NULL OR actor = %(actor)s)
  AND (%(action)s::text IS NULL OR action = %(action)s)
  AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR at < %(until)s)
  AND (%(id)s::text IS NULL OR %(id)s = ANY (ids))
ORDER BY id DESC
LIMIT %(limit)s
