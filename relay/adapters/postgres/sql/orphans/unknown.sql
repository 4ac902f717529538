-- Which events of a stream the outbox does not know. An event that may be archived counts as known: the archive keeps no
-- ids of events, but the time of the last one. So does an event that was reported to the consumers.
SELECT it.id
FROM unnest(%(ids)s::uuid[], %(times)s::timestamptz[]) AS it (id, at)
WHERE NOT EXISTS (SELECT FROM outbox_events AS e WHERE e.id = it.id)
  AND NOT EXISTS (SELECT FROM orphaned_events AS o WHERE o.event_id = it.id AND o.reported_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM archive_batches AS b WHERE b.kind = 'outbox' AND b.last_at >= it.at)
