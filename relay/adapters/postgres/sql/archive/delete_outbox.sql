-- Delete the rows that were read back from the archive, and keep up to where they were published. The transaction
-- holds these rows locked.
WITH gone AS (
    DELETE FROM outbox_events WHERE id = ANY (%(ids)s::uuid[])
    RETURNING published_stream, published_seq
), published AS (
    INSERT INTO archived_events AS a (stream, last_seq, archived_at)
    SELECT published_stream, max(published_seq), clock_timestamp()
    FROM gone
    WHERE published_stream IS NOT NULL AND published_seq IS NOT NULL
    GROUP BY published_stream
    ON CONFLICT (stream) DO UPDATE
        SET last_seq = greatest(a.last_seq, excluded.last_seq), archived_at = excluded.archived_at
)
SELECT FROM gone
