-- Note where the letters of incidents are that were recorded without them.
UPDATE dead_letters AS d
SET letter_stream = l.letter_stream, letter_seq = l.letter_seq
FROM unnest(%(message_id)s::uuid[], %(occurrence)s::int[], %(letter_stream)s::text[], %(letter_seq)s::bigint[])
    AS l (message_id, occurrence, letter_stream, letter_seq)
WHERE d.message_id = l.message_id AND d.occurrence = l.occurrence AND d.letter_seq IS NULL
