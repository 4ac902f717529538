-- The payload of an event as text in UTF-8, in pieces, so that no reader needs room for all of it. It is made once: OFFSET
-- 0 keeps it apart. Nothing sorts the pieces: a sort would copy them. Whoever reads them checks a digest.
SELECT substr(whole.content, piece.begin, %(size)s::int)
FROM (SELECT convert_to(payload::text, 'UTF8') AS content FROM outbox_events WHERE id = %(id)s::uuid OFFSET 0) AS whole,
     generate_series(1, octet_length(whole.content), %(size)s::int) AS piece (begin)
