-- Order per key at the insert (DESIGN §5): within a key, the order of `seq` is the order of commits.

-- How long a lock is waited for: by a transaction that may begin again until `until`, by any other without a limit.
CREATE FUNCTION relay_limit_wait(until TIMESTAMPTZ) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF until IS NOT NULL THEN
    PERFORM set_config(
      'lock_timeout', greatest(1, ceil(extract(epoch FROM until - clock_timestamp()) * 1000))::TEXT, true);
  END IF;
END $$;

CREATE FUNCTION relay_take_outbox_locks(held INT[], keys INT[], every BOOLEAN, until TIMESTAMPTZ)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  item INT;
  noted TEXT;
BEGIN
  IF every THEN
    FOR lane IN 0..63 LOOP
      IF NOT pg_try_advisory_xact_lock(relay_lane_locks(), lane) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock(relay_lane_locks(), lane);
      END IF;
    END LOOP;
    noted := set_config('relay.outbox_keys', 'all', true);
  ELSE
    FOREACH item IN ARRAY keys LOOP
      IF NOT pg_try_advisory_xact_lock(relay_key_locks(), item) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock(relay_key_locks(), item);
      END IF;
    END LOOP;
    FOREACH item IN ARRAY keys LOOP
      IF NOT pg_try_advisory_xact_lock_shared(relay_lane_locks(), relay_lane_of_hash(item)) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock_shared(relay_lane_locks(), relay_lane_of_hash(item));
      END IF;
    END LOOP;
    noted := set_config('relay.outbox_keys', (held || keys)::TEXT, true);
  END IF;
  IF until IS NOT NULL THEN
    noted := set_config('lock_timeout', '0', true);
  END IF;
  RETURN true;
END $$;

-- Locks keys, or all lanes instead when a transaction has over 64 keys. So a transaction holds at most 64 keys and 64
-- lanes, which fits the default of max_locks_per_transaction. A setting of the transaction notes what it holds. If a
-- savepoint is rolled back, setting and locks are undone together. Returns whether a lock was taken just now.
--
-- Keys come before lanes, and all in one order. So a transaction that waits for its only key holds nothing. If a
-- transaction has written no event before, it releases its locks after waiting for 300 ms, and begins again. So it
-- does not block a transaction that writes keys one by one in another order, and is in no deadlock when PostgreSQL
-- looks for one. After 100 times it waits without releasing, so that it does not try for ever. A lock_timeout of the
-- caller stays in force.
CREATE FUNCTION relay_lock_outbox(wanted INT[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  noted CONSTANT TEXT := coalesce(current_setting('relay.outbox_keys', true), '');
  held INT[] := '{}';
  keys INT[] := wanted;
  every BOOLEAN;
  patience INTERVAL := '300 milliseconds';
  tries INT := 0;
BEGIN
  IF noted = 'all' OR cardinality(wanted) = 0 THEN
    RETURN false;
  ELSIF noted <> '' THEN
    held := noted;
  END IF;
  IF cardinality(wanted) > 1 THEN
    keys := ARRAY(SELECT key FROM (SELECT DISTINCT key FROM unnest(wanted) AS key) AS one
                  ORDER BY relay_lane_of_hash(key), key);
  END IF;
  IF cardinality(held) > 0 THEN
    keys := ARRAY(SELECT key FROM unnest(keys) AS key WHERE key <> ALL (held));
  END IF;
  IF cardinality(keys) = 0 THEN
    RETURN false;
  END IF;
  every := cardinality(held) + cardinality(keys) > 64;
  IF cardinality(held) > 0 OR cardinality(keys) = 1 OR current_setting('lock_timeout') <> '0' THEN
    RETURN relay_take_outbox_locks(held, keys, every, NULL);
  END IF;
  LOOP
    BEGIN
      RETURN relay_take_outbox_locks(held, keys, every, clock_timestamp() + patience);
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      tries := tries + 1;
      patience := CASE WHEN tries < 100 THEN patience END;
      PERFORM pg_sleep(0.05 * random());
    END;
  END LOOP;
END $$;

-- The next two are for producers in raw SQL, which name no partition key. Keys can be locked in order only when all
-- rows of a statement are known, so they are locked after it. In the meantime another transaction may have taken a
-- later number and committed first, with an event of the same key. Only then the rows get new numbers. The first row
-- waits for its key before it takes a number, and releases the key again. This is for statements of one row: the
-- number that they return is then final.
CREATE FUNCTION relay_order_outbox_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  key INT;
  lane INT;
BEGIN
  NEW.partition_key := NEW.aggregate_type || ':' || NEW.aggregate_id;
  IF current_setting('relay.outbox_raw', true) IS DISTINCT FROM 'on' THEN
    PERFORM set_config('relay.outbox_raw', 'on', true);
    key := hashtext(NEW.partition_key);
    lane := relay_lane_of_hash(key);
    PERFORM pg_advisory_lock(relay_key_locks(), key), pg_advisory_unlock(relay_key_locks(), key);
    PERFORM pg_advisory_lock_shared(relay_lane_locks(), lane), pg_advisory_unlock_shared(relay_lane_locks(), lane);
    NEW.seq := nextval('outbox_events_seq_seq');
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER relay_order_outbox_event BEFORE INSERT ON outbox_events
  FOR EACH ROW WHEN (NEW.partition_key IS NULL)
  EXECUTE FUNCTION relay_order_outbox_event();

CREATE FUNCTION relay_number_outbox_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('relay.outbox_raw', '', true);
  IF relay_lock_outbox(ARRAY(SELECT DISTINCT hashtext(partition_key) FROM added WHERE partition_key <> ''))
     AND (SELECT max(seq) IS DISTINCT FROM (SELECT last_value FROM outbox_events_seq_seq)
                 OR max(seq) - min(seq) <> count(*) - 1
          FROM added) THEN
    UPDATE outbox_events AS e
    SET seq = place.seq
    FROM (SELECT id, nextval('outbox_events_seq_seq') AS seq
          FROM (SELECT id FROM added ORDER BY seq) AS sorted) AS place
    WHERE e.id = place.id;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER relay_number_outbox_events AFTER INSERT ON outbox_events
  REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT WHEN (current_setting('relay.outbox_raw', true) = 'on')
  EXECUTE FUNCTION relay_number_outbox_events();
