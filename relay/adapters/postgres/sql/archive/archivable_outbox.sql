-- How many rows archive/archive_outbox would find in all.
SELECT count(*), min(published_at), max(published_at)
FROM outbox_events
WHERE published_at < now() - %(after)s::interval
  AND (published_stream IS NULL OR published_stream = ANY (%(streams)s::text[]))
