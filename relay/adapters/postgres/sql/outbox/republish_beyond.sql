-- Publish the events that a stream lost at its end again, all in one statement, so that the events of a key keep
-- their order.
--
-- Within the duplicate window the stream may still recognise the id and drop the event as a duplicate. So the
-- event gets the next generation, which consumers read as the same event. available_at and publish_attempts are
-- cleared, because otherwise the events would not go in the order of seq.
WITH lost AS (
    UPDATE outbox_events
    SET published_at = NULL,
        dead_at = NULL,
        published_stream = NULL,
        published_seq = NULL,
        published_duplicate = NULL,
        publish_attempts = 0,
        publish_error = NULL,
        available_at = NULL,
        generation = generation
            + (published_at > clock_timestamp() - %(window)s::interval - interval '10 seconds')::int
    WHERE published_stream = %(stream)s
      AND published_seq > %(last_seq)s
      AND published_at < %(before)s
      AND coalesce(expires_at > clock_timestamp(), true)
      AND NOT EXISTS (
          SELECT FROM erased_messages AS m WHERE (m.stream, m.stream_seq, m.event_id) = (%(stream)s, published_seq, id))
      AND (%(max_age)s::interval IS NULL OR published_at > clock_timestamp() - %(max_age)s::interval)
    RETURNING id, originals, seq
)
SELECT count(*), (array_agg(coalesce(originals ->> 'id', id::text) ORDER BY seq))[1:20] FROM lost
