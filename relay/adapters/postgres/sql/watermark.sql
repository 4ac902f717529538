-- Up to where a subscription's inbox is known to be complete.
SELECT consumer_seq, stream_seq, ahead
FROM inbox_watermarks
WHERE subscription = %(subscription)s AND stream = %(stream)s
