-- Producers own their columns only. What the engine keeps in a row begins as it does for every new row, whoever inserts
-- it, also the owner of the tables: a row that says that it has failed would hold back its key for ever.
--
-- Rows that are over may come back with what they were: from the archive, from a stream, from a dump. Whoever may UPDATE
-- the table may insert those, and any row after `SET relay.restoring = on`. A producer may insert an event that is over
-- by the view of MicroDAO, which always names topic and stream.
--
-- The conditions of the triggers are all that an ordinary insert pays. The times are those that every client can read.
CREATE FUNCTION relay_refuse_engine_columns() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  row CONSTANT JSONB := to_jsonb(NEW) - 'payload';
  engine CONSTANT JSONB := CASE TG_TABLE_NAME
    WHEN 'outbox_events' THEN '{"published_at": null, "publish_attempts": 0, "publish_error": null, "dead_at": null,
      "published_stream": null, "published_seq": null, "published_duplicate": null, "generation": 0}'
    ELSE '{"status": "pending", "attempts": 0, "last_error": null, "delivered_at": null, "enqueued_at": null,
      "next_attempt_at": null, "waits_for": null, "started_at": null, "claim_token": null, "claimed_until": null,
      "finished_at": null}' END;
  over CONSTANT BOOLEAN := coalesce(row ->> 'published_at', row ->> 'dead_at', row ->> 'finished_at') IS NOT NULL;
  wrong TEXT;
BEGIN
  SELECT min(given.key) INTO wrong
  FROM jsonb_each(row) AS given JOIN jsonb_each(engine) AS initial USING (key)
  WHERE given.value <> initial.value;
  IF has_table_privilege(TG_RELID, 'UPDATE')
     AND (over OR lower(current_setting('relay.restoring', true)) IN ('on', 'true', '1')) THEN
    RETURN NEW;
  ELSIF wrong IS NULL THEN
    RAISE check_violation USING
      MESSAGE = 'new row for relation "' || TG_TABLE_NAME || '" violates check constraint "' || TG_NAME || '"',
      DETAIL = CASE TG_TABLE_NAME WHEN 'outbox_events' THEN
          'a time is not of the years 1 to 9999, or headers or originals is no JSON object'
        ELSE 'a time is not of the years 1 to 9999, or metadata or originals is no JSON object, or type or'
          ' concurrency_key has more than 1000 bytes' END,
      HINT = 'correct the value, or leave it out', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
      CONSTRAINT = TG_NAME;
  ELSIF row ->> 'topic' IS NOT NULL AND row ->> 'stream' IS NOT NULL
        AND row @> (engine - '{published_at,dead_at,publish_error}'::text[]) AND row ->> 'available_at' IS NULL
        AND coalesce((row ->> 'published_at')::timestamptz, (row ->> 'dead_at')::timestamptz, now())
            BETWEEN '0001-01-02 00:00+00' AND '9999-12-31 00:00+00' THEN
    RETURN NEW;
  END IF;
  RAISE check_violation USING
    MESSAGE = 'new row for relation "' || TG_TABLE_NAME || '" violates check constraint "' || TG_NAME || '"',
    DETAIL = wrong || ' belongs to the relay, and a new row has its default there',
    HINT = 'leave it out; to put back rows of a dump, the owner of the table may SET relay.restoring = on',
    SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = wrong, CONSTRAINT = TG_NAME;
END $$;

CREATE TRIGGER chk_outbox_producer BEFORE INSERT ON outbox_events
  FOR EACH ROW WHEN (
    NEW.publish_attempts <> 0 OR NEW.generation <> 0
    OR num_nonnulls(NEW.published_at, NEW.publish_error, NEW.dead_at, NEW.published_stream, NEW.published_seq,
                    NEW.published_duplicate) > 0
    OR NEW.available_at < '0001-01-02 00:00+00' OR NEW.available_at >= '9999-12-31 00:00+00'
    OR NEW.occurred_at < '0001-01-02 00:00+00'
    OR jsonb_typeof(NEW.headers) <> 'object' OR jsonb_typeof(NEW.originals) <> 'object')
  EXECUTE FUNCTION relay_refuse_engine_columns();

CREATE TRIGGER chk_task_producer BEFORE INSERT ON task_outbox
  FOR EACH ROW WHEN (
    NEW.status <> 'pending' OR NEW.attempts <> 0
    OR num_nonnulls(NEW.last_error, NEW.delivered_at, NEW.enqueued_at, NEW.next_attempt_at, NEW.waits_for,
                    NEW.started_at, NEW.claim_token, NEW.claimed_until, NEW.finished_at) > 0
    OR NEW.available_at < '0001-01-02 00:00+00' OR NEW.available_at >= '9999-12-31 00:00+00'
    OR NEW.created_at < '0001-01-02 00:00+00' OR NEW.created_at >= '9999-12-31 00:00+00'
    OR jsonb_typeof(NEW.metadata) <> 'object' OR jsonb_typeof(NEW.originals) <> 'object'
    OR octet_length(NEW.type) > 1000 OR octet_length(NEW.concurrency_key) > 1000)
  EXECUTE FUNCTION relay_refuse_engine_columns();

-- POL-047-002 is for events that come, not for those that come back.
CREATE OR REPLACE FUNCTION relay_refuse_future_event() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF NEW.published_at IS NOT NULL AND has_table_privilege(TG_RELID, 'UPDATE') THEN
    RETURN NULL;
  END IF;
  RAISE check_violation USING
    MESSAGE = 'new row for relation "' || TG_TABLE_NAME || '" violates check constraint "' || TG_NAME || '"',
    DETAIL = 'occurred_at is more than a minute ahead of the clock of the database',
    HINT = 'use available_at to delay an event',
    SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME, COLUMN = 'occurred_at';
END $$;

-- Whether JSON can be unpacked: no number in it has more than 400 digits, which no client reads. One of twelve bytes may
-- have a hundred thousand, so a row of two thousand bytes may be a text of thirty million.
CREATE FUNCTION relay_unpacks(of_row JSONB) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN NOT jsonb_path_exists(of_row, '$.** ? (@.type() == "number" && (
  @ >= 1e400 || @ <= -1e400 || (@ > -1e-400 && @ < 1e-400 && @ != 0)))');
