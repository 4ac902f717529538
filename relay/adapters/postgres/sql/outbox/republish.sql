-- Publish events again that the stream does not hold at the sequence it acknowledged, unless they are stale: the stream
-- may have removed those itself. Fenced: an event changes
-- only while the ledger still has this sequence, so two audits at the same time republish it only once. See
-- outbox/republish_beyond.
WITH lost AS (
    UPDATE outbox_events AS e
    SET published_at = NULL,
        dead_at = NULL,
        published_stream = NULL,
        published_seq = NULL,
        published_duplicate = NULL,
        publish_attempts = 0,
        publish_error = NULL,
        available_at = NULL,
        generation = e.generation
            + (e.published_at > clock_timestamp() - %(window)s::interval - interval '10 seconds')::int
    FROM unnest(%(ids)s::uuid[], %(seqs)s::bigint[]) AS missing (id, seq)
    WHERE e.id = missing.id
      AND e.published_stream = %(stream)s
      AND e.published_seq = missing.seq
      AND e.published_at IS NOT NULL
      AND coalesce(e.expires_at > clock_timestamp(), true)
    RETURNING e.id, e.originals, e.seq
)
SELECT count(*), (array_agg(coalesce(originals ->> 'id', id::text) ORDER BY seq))[1:20] FROM lost
