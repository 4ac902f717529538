-- As inbox/watermark, with a lock: batches of one subscription move the watermark one after the other.
SELECT consumer_seq, stream_seq, ahead
FROM inbox_watermarks
WHERE subscription = %(subscription)s AND stream = %(stream)s
FOR UPDATE
