-- The watermark of a subscription's stream, before anything has come: nothing is known.
INSERT INTO inbox_watermarks (subscription, stream, consumer_seq)
VALUES (%(subscription)s, %(stream)s, 0)
ON CONFLICT DO NOTHING
