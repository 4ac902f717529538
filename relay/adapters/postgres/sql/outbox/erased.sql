-- Which of these events were erased from their places in a stream.
SELECT it.id
FROM unnest(%(ids)s::uuid[], %(seqs)s::bigint[]) AS it (id, seq)
JOIN erased_messages AS m ON m.stream = %(stream)s AND m.stream_seq = it.seq AND m.event_id = it.id
