-- How many rows archive/archive_inbox would find in all.
SELECT count(*), min(ended_at), max(ended_at)
FROM (SELECT processed_at AS ended_at
      FROM inbox_messages
      WHERE processed_at < now() - %(after)s::interval
        AND stream = ANY (%(streams)s::text[])
      UNION ALL
      SELECT dead.dead_lettered_at
      FROM inbox_messages AS dead
      JOIN dead_letters AS d ON d.message_id = dead.message_id AND d.occurrence = dead.requeues + 1
      WHERE dead.processed_at IS NULL
        AND dead.dead_lettered_at < now() - %(after)s::interval
        AND dead.stream = ANY (%(streams)s::text[])
        AND (dead.order_key IS NULL OR dead.stepped_over)
        AND d.status IN ('discarded', 'resolved')
        AND d.closed_at < now() - %(after)s::interval) AS ended
