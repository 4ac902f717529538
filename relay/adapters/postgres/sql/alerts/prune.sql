-- Delete old causes in small batches, also those that no webhook ever took.
DELETE FROM alerts
WHERE ctid = ANY(ARRAY(SELECT ctid FROM alerts WHERE raised_at < now() - %(keep)s::interval LIMIT %(limit)s))
