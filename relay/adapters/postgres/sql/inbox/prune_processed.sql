-- Delete old rows in small batches, so that locks are held briefly.
DELETE FROM processed_events
WHERE ctid = ANY(ARRAY(SELECT ctid FROM processed_events WHERE processed_at < now() - %(keep)s LIMIT %(limit)s))
