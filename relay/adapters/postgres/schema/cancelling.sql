-- Producers take back what they wrote, before it leaves: events by their ids, or all of a key. They may not read or change
-- the table, so this runs as its owner. It waits for a publisher that has one in work; if that publishes it, it stays
-- published. Until the caller's transaction ends, no publisher takes them, and later ones of their keys wait. What is
-- cancelled is over as a discarded event is; an operator may reopen it.
CREATE FUNCTION relay_cancel_events(ids UUID[], of_key TEXT) RETURNS SETOF UUID
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY
  WITH found AS MATERIALIZED (
    SELECT e.id AS found_id
    FROM outbox_events AS e
    WHERE e.published_at IS NULL
      AND e.id = ANY (coalesce(ids, ARRAY(
        -- What is ready, delayed or tried again, and dead, each by an index.
        SELECT k.id FROM outbox_events AS k
        WHERE k.published_at IS NULL AND k.dead_at IS NULL AND k.available_at IS NULL AND k.partition_key = of_key
          AND relay_lane(k.partition_key) = relay_lane(of_key)
          AND hashtextextended(k.partition_key, 0) = hashtextextended(of_key, 0)
        UNION ALL
        SELECT k.id FROM outbox_events AS k
        WHERE k.published_at IS NULL AND k.dead_at IS NULL AND k.available_at IS NOT NULL AND k.partition_key = of_key
          AND hashtext(k.partition_key) = hashtext(of_key)
        UNION ALL
        SELECT k.id FROM outbox_events AS k
        WHERE k.published_at IS NULL AND k.dead_at IS NOT NULL AND k.partition_key = of_key)))
    ORDER BY e.seq
    FOR UPDATE
  )
  UPDATE outbox_events AS e
  SET published_at = clock_timestamp(),
      dead_at = clock_timestamp(),
      publish_error = 'CANCELLED: its producer took it back'
  FROM found
  WHERE e.id = found_id
  RETURNING e.id;
END $$;
