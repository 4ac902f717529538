-- Move the watermark, in the transaction that holds its lock.
UPDATE inbox_watermarks
SET consumer_seq = %(consumer_seq)s, stream_seq = %(stream_seq)s, ahead = %(ahead)s::jsonb
WHERE subscription = %(subscription)s AND stream = %(stream)s
