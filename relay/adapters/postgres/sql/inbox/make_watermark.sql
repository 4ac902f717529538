-- Create the watermark of a subscription's stream before any message has arrived. Nothing is known yet.
INSERT INTO inbox_watermarks (subscription, stream, consumer_seq)
VALUES (%(subscription)s, %(stream)s, 0)
ON CONFLICT DO NOTHING
