-- Which events of a stream the outbox does not know. An event that may be archived counts as known: it was stored before
-- the last one left for the archive, and its place is not behind that of all that left. Older releases noted only the
-- time of the last event of a batch. An event that was reported to the consumers counts as known, too.
SELECT it.id
FROM unnest(%(ids)s::uuid[], %(seqs)s::bigint[], %(times)s::timestamptz[]) AS it (id, seq, at)
WHERE NOT EXISTS (SELECT FROM outbox_events AS e WHERE e.id = it.id)
  AND NOT EXISTS (SELECT FROM orphaned_events AS o WHERE o.event_id = it.id AND o.reported_at IS NOT NULL)
  AND NOT EXISTS (
      SELECT FROM archived_events AS a
      WHERE a.stream = %(stream)s AND a.last_seq >= it.seq AND a.archived_at >= it.at)
  AND NOT EXISTS (SELECT FROM archive_batches AS b WHERE b.kind = 'outbox' AND b.last_at >= it.at)
