-- How many orphans of each stream are noted and wait for a decision, and the first one.
SELECT stream, count(*), min(stream_seq), min(stored_at)
FROM orphaned_events
WHERE reported_at IS NULL
GROUP BY stream
ORDER BY stream
