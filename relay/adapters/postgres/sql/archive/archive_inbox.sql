-- Messages that are old enough for the archive, the oldest first. They stay locked until they are deleted. These
-- are processed messages, and dead letters whose incident is closed and whose key goes on without them. A row
-- without a stream stays in its table: it is not known when its message can no longer come again.
SELECT message_id, coalesce(processed_at, dead_lettered_at), row_to_json(i)::text
FROM inbox_messages AS i
WHERE message_id = ANY (ARRAY(
          SELECT message_id
          FROM ((SELECT message_id, processed_at AS ended_at
                 FROM inbox_messages
                 WHERE processed_at < now() - %(after)s::interval
                   AND stream = ANY (%(streams)s::text[])
                 ORDER BY processed_at, message_id
                 LIMIT %(limit)s)
                UNION ALL
                (SELECT dead.message_id, dead.dead_lettered_at
                 FROM inbox_messages AS dead
                 JOIN dead_letters AS d ON d.message_id = dead.message_id AND d.occurrence = dead.requeues + 1
                 WHERE dead.processed_at IS NULL
                   AND dead.dead_lettered_at < now() - %(after)s::interval
                   AND dead.stream = ANY (%(streams)s::text[])
                   AND (dead.order_key IS NULL OR dead.stepped_over)
                   AND d.status IN ('discarded', 'resolved')
                   AND d.closed_at < now() - %(after)s::interval
                 ORDER BY dead.dead_lettered_at, dead.message_id
                 LIMIT %(limit)s)) AS ended
          ORDER BY ended_at, message_id
          LIMIT %(limit)s))
  AND (processed_at IS NOT NULL OR dead_lettered_at IS NOT NULL)
ORDER BY coalesce(processed_at, dead_lettered_at), message_id
FOR UPDATE SKIP LOCKED
