-- Sequences that stand below the numbers of their tables: after a promotion that did not copy sequences, a restore of
-- rows alone, or ALTER SEQUENCE … RESTART. New events would then overtake those of their key that wait, and new rows
-- of other tables would meet a number that is taken.
--
-- The highest number above the sequence among open events of a lane: of ready ones, and of failed
-- ones. Two indexes begin with the lane, and usually they have nothing there. Dead ones are left to upkeep. The statement's snapshot is older than its look
-- at the sequence, so a number that another session takes just now is never above it. One lane, because the plan of
-- a list of lanes would be made anew each time.
CREATE FUNCTION relay_outbox_ahead(lane INT, last_number BIGINT)
RETURNS TABLE (seq BIGINT) LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  (SELECT e.seq
   FROM outbox_events AS e
   WHERE e.published_at IS NULL AND e.dead_at IS NULL AND e.available_at IS NULL
     AND relay_lane(e.partition_key) = lane AND e.seq > last_number
   ORDER BY e.seq DESC
   LIMIT 1)
  UNION ALL
  (SELECT e.seq
   FROM outbox_events AS e
   WHERE e.published_at IS NULL AND e.publish_attempts > 0
     AND CASE WHEN e.dead_at IS NULL THEN 0 ELSE 1 END = 0
     AND relay_lane(e.partition_key) = lane AND e.seq > last_number
   ORDER BY e.seq DESC
   LIMIT 1);
END;

-- How far each sequence is behind its table: the highest number that is found there, if it is above the sequence. The
-- newest rows by id and by publication are enough, because ids grow with time; among random ids they are a sample.
CREATE FUNCTION relay_sequences_behind()
RETURNS TABLE (sequence REGCLASS, last_number BIGINT, highest BIGINT)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY
  SELECT found.name, found.last, found.top
  FROM (
    SELECT 'outbox_events_seq_seq'::regclass AS name, here.last_value - (NOT here.is_called)::INT AS last, (
        SELECT max(seq) FROM (
            SELECT ahead.seq FROM generate_series(-1, 63) AS lane, relay_outbox_ahead(lane, here.last_value - (NOT here.is_called)::INT) AS ahead
            UNION ALL
            (SELECT e.seq FROM outbox_events AS e WHERE e.published_at IS NULL AND e.dead_at IS NOT NULL
             ORDER BY e.dead_at DESC LIMIT 1000)
            UNION ALL
            (SELECT e.seq FROM outbox_events AS e ORDER BY e.id DESC LIMIT 1000)
            UNION ALL
            (SELECT e.seq FROM outbox_events AS e WHERE e.published_at IS NOT NULL
             ORDER BY e.published_at DESC LIMIT 1000)) AS numbers) AS top
    FROM outbox_events_seq_seq AS here
    UNION ALL
    SELECT 'task_outbox_seq_seq'::regclass, here.last_value - (NOT here.is_called)::INT,
           (SELECT max(seq) FROM (SELECT t.seq FROM task_outbox AS t ORDER BY t.id DESC LIMIT 1000) AS newest)
    FROM task_outbox_seq_seq AS here
    UNION ALL
    SELECT 'dead_letters_id_seq'::regclass, here.last_value - (NOT here.is_called)::INT, (SELECT max(id) FROM dead_letters)
    FROM dead_letters_id_seq AS here
    UNION ALL
    SELECT 'alerts_id_seq'::regclass, here.last_value - (NOT here.is_called)::INT, (SELECT max(id) FROM alerts)
    FROM alerts_id_seq AS here
    UNION ALL
    SELECT 'audit_log_id_seq'::regclass, here.last_value - (NOT here.is_called)::INT, (SELECT max(id) FROM audit_log)
    FROM audit_log_id_seq AS here
    UNION ALL
    SELECT 'scheduled_runs_id_seq'::regclass, here.last_value - (NOT here.is_called)::INT, (SELECT max(id) FROM scheduled_runs)
    FROM scheduled_runs_id_seq AS here) AS found
  WHERE found.top > found.last;
END $$;

-- Set sequences that are behind above their tables, and return their names. A number near the end of all numbers is
-- left alone: it is no count, and behind it there is nothing. One session at a time does it, and looks once more when
-- it has the lock: to set a sequence twice could set it back. Others go on taking low numbers meanwhile, but never so
-- many that they come to the distance.
CREATE FUNCTION relay_mend_sequences() RETURNS TEXT[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  mended TEXT[] := '{}';
  it RECORD;
BEGIN
  PERFORM pg_advisory_lock(relay_lane_locks(), 64);
  FOR it IN SELECT * FROM relay_sequences_behind() LOOP
    CONTINUE WHEN it.highest > 4000000000000000000;
    PERFORM setval(it.sequence, it.highest + CASE WHEN right(it.sequence::text, 7) = 'seq_seq' THEN 1000000 ELSE 100 END);
    mended := mended || it.sequence::text;
    -- Marks of publishers may be above numbers that were given meanwhile. They end with this count.
    PERFORM nextval('relay_reopened') WHERE it.sequence = 'outbox_events_seq_seq'::regclass;
  END LOOP;
  PERFORM pg_advisory_unlock(relay_lane_locks(), 64);
  RETURN mended;
END $$;

-- Before a transaction takes numbers for events of keys that it has just locked.
CREATE FUNCTION relay_keep_ahead(keys INT[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  lanes INT[] := keys;
  key INT;
BEGIN
  IF cardinality(keys) > 1 THEN
    lanes := ARRAY(SELECT DISTINCT relay_lane_of_hash(one) FROM unnest(keys) AS one);
  END IF;
  FOREACH key IN ARRAY lanes LOOP
    PERFORM FROM outbox_events_seq_seq AS here,
                 relay_outbox_ahead(relay_lane_of_hash(key), here.last_value - (NOT here.is_called)::INT) LIMIT 1;
    IF FOUND THEN
      PERFORM relay_mend_sequences();
      RETURN;
    END IF;
  END LOOP;
END $$;

-- The lock of keys is the place for it: whoever holds a key sees all committed events of it, and takes its own numbers
-- afterwards. A raw statement locks keys after it has taken numbers, so its first row looks before. The functions keep
-- their names of locks and settings, which belong to the schema.
DO $$ DECLARE
  place RECORD;
BEGIN
  FOR place IN
    SELECT * FROM (VALUES
      ('relay_take_outbox_locks', '  RETURN true;', '  PERFORM relay_keep_ahead(keys);'),
      ('relay_order_outbox_event', '    NEW.seq := nextval(', '    PERFORM relay_keep_ahead(ARRAY[key]);')
    ) AS it (name, line, before)
  LOOP
    EXECUTE (SELECT replace(pg_get_functiondef(oid), place.line, place.before || E'\n' || place.line)
             FROM pg_proc WHERE proname = place.name AND pronamespace = current_schema()::regnamespace);
  END LOOP;
END $$;
