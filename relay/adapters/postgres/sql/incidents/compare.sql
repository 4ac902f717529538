-- A page of dead inbox rows, the last one first, compared with their incidents: the rows without one, and the
-- incidents under the key of a row that tell of another death. Also returns where the page ends, and its length.
WITH page AS MATERIALIZED (
    SELECT message_id, dead_lettered_at, requeues, subscription, dead_letter_class, dead_letter_reason
    FROM inbox_messages
    WHERE dead_lettered_at IS NOT NULL AND processed_at IS NULL
      AND dead_lettered_at <= coalesce(%(before)s::timestamptz, 'infinity')
      AND (dead_lettered_at, message_id)
          < (coalesce(%(before)s::timestamptz, 'infinity'), coalesce(%(below)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    ORDER BY dead_lettered_at DESC, message_id DESC
    LIMIT %(limit)s
), compared AS (
    SELECT page.message_id, dead_lettered_at, d.id,
           num_nulls(dead_letter_class, dead_letter_reason) = 0
           AND (d.subscription, d.class, d.reason)
               IS DISTINCT FROM (page.subscription, dead_letter_class, dead_letter_reason) AS differs
    FROM page
    LEFT JOIN dead_letters AS d ON d.message_id = page.message_id AND d.occurrence = requeues + 1
)
SELECT coalesce(array_agg(message_id) FILTER (WHERE id IS NULL OR differs), '{}'),
       coalesce(array_agg(id) FILTER (WHERE id IS NOT NULL AND differs), '{}'),
       count(*),
       (array_agg(dead_lettered_at ORDER BY dead_lettered_at, message_id))[1],
       (array_agg(message_id ORDER BY dead_lettered_at, message_id))[1]
FROM compared
