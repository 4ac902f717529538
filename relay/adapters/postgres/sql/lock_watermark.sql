-- As watermark, locked: batches of one subscription move it one after the other.
SELECT consumer_seq, stream_seq, ahead
FROM inbox_watermarks
WHERE subscription = %(subscription)s AND stream = %(stream)s
FOR UPDATE
