-- The place up to which the inbox of a subscription is known to be complete.
SELECT consumer_seq, stream_seq, ahead
FROM inbox_watermarks
WHERE subscription = %(subscription)s AND stream = %(stream)s
