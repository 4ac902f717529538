-- Give unpublished events up. Each is over without a place in the stream: both times are set, which nothing else does.
-- So no claim finds it, it holds back no later event of its key, and the archive takes it in its time.
UPDATE outbox_events
SET published_at = clock_timestamp(), dead_at = clock_timestamp()
WHERE id = ANY (%(ids)s::uuid[])
  AND published_at IS NULL
