-- Note which messages of a stream will be erased, and publish their events again, without what is to be forgotten, if
-- somebody has not had them. The new generation has another id for the stream, which may know the old one. An event
-- that was published again since is not at this place any more. Returns all but those whose event somebody has locked:
-- their messages stay for now.
WITH wanted AS (
    SELECT * FROM unnest(%(seqs)s::bigint[], %(ids)s::uuid[], %(again)s::boolean[]) AS it (seq, id, again)
), locked AS MATERIALIZED (
    SELECT e.id
    FROM outbox_events AS e
    WHERE e.id = ANY (%(ids)s::uuid[])
    FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
    SELECT wanted.*, row_number() OVER (ORDER BY seq) AS place
    FROM wanted
    LEFT JOIN locked USING (id)
    WHERE locked.id IS NOT NULL OR NOT EXISTS (SELECT FROM outbox_events AS e WHERE e.id = wanted.id)
), noted AS (
    INSERT INTO erased_messages AS m (stream, stream_seq, event_id)
    SELECT %(stream)s, seq, id FROM free
    ON CONFLICT (stream, stream_seq) DO UPDATE
        SET event_id = excluded.event_id, erased_at = clock_timestamp()
        WHERE m.event_id IS DISTINCT FROM excluded.event_id
), published AS (
    UPDATE outbox_events AS e
    SET generation = e.generation + 1,
        published_at = NULL,
        published_stream = NULL,
        published_seq = NULL,
        published_duplicate = NULL,
        publish_attempts = 0,
        publish_error = NULL,
        available_at = clock.now + free.place * interval '1 microsecond'
    FROM free, (SELECT clock_timestamp() AS now) AS clock
    WHERE e.id = free.id AND free.again AND e.dead_at IS NULL
      AND (e.published_at IS NULL OR (e.published_stream = %(stream)s AND e.published_seq = free.seq))
      AND coalesce(e.expires_at > clock.now, true)
    RETURNING e.id
)
SELECT free.seq, published.id IS NOT NULL FROM free LEFT JOIN published USING (id)
