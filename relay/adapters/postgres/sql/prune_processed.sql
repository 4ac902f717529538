-- Forget what was handled long ago, in bites that hold locks briefly.
DELETE FROM processed_events
WHERE ctid = ANY(ARRAY(SELECT ctid FROM processed_events WHERE processed_at < now() - %(keep)s LIMIT %(limit)s))
