-- One row tells producers whether the outbox sleeps, and whether they must slow down.

-- The brake lasts until brake_until, by the clock of this database. So a scheduler that has ended leaves no brake for
-- ever.
CREATE TABLE relay_wakeup (
  id BOOLEAN PRIMARY KEY DEFAULT true CHECK (id),
  sleeping BOOLEAN NOT NULL DEFAULT false,
  brake TEXT,
  brake_delay INTERVAL,
  brake_reason TEXT,
  brake_since TIMESTAMPTZ,
  brake_until TIMESTAMPTZ
);

INSERT INTO relay_wakeup DEFAULT VALUES;

-- Once for each transaction, before it takes locks of keys, so that no other waits for a delayed transaction. The note
-- in the transaction names the schema, because contexts may share a database.
--
-- A warning also goes to the log of the server, so a session gives one in ten seconds. The time of the last one stays
-- in a setting of the session; behind a pooler another client may read it, and then it is warned later.
--
-- The relay's own sessions run handlers and tasks. To refuse them would spend attempts and end in dead letters. To
-- delay them slows down a consumer that produces too much.
CREATE FUNCTION relay_brake_producer(told TEXT) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  held relay_wakeup;
  at CONSTANT FLOAT8 := extract(epoch FROM clock_timestamp());
  silent CONSTANT BOOLEAN := at <= coalesce(nullif(current_setting('relay.warned_at', true), '')::FLOAT8, 0) + 10;
BEGIN
  IF (told = 'warn' AND silent) OR current_setting('relay.braked', true) = current_schema() THEN
    RETURN;
  END IF;
  SELECT * INTO held FROM relay_wakeup WHERE brake_until > clock_timestamp();
  IF held.brake IS NULL THEN
    RETURN;
  ELSIF held.brake = 'refuse' AND NOT starts_with(current_setting('application_name'), 'jetrelay-') THEN
    RAISE configuration_limit_exceeded USING
      MESSAGE = 'OUTBOX_FULL: ' || held.brake_reason,
      HINT = 'nothing was recorded: roll back, and run the whole transaction again later',
      CONSTRAINT = 'relay_brake';
  END IF;
  PERFORM set_config('relay.braked', current_schema(), true);
  IF NOT silent THEN
    PERFORM set_config('relay.warned_at', at::TEXT, false);
    RAISE WARNING USING MESSAGE = 'OUTBOX_FULL: ' || held.brake_reason, CONSTRAINT = 'relay_brake';
  END IF;
  IF held.brake <> 'warn' THEN
    PERFORM pg_sleep_for(held.brake_delay);
  END IF;
END $$;

-- Hint and brake, with one read for both. A NOTIFY takes a lock of the whole cluster at commit, so it is sent only
-- while the outbox sleeps. A brake that has ended by itself costs nothing.
CREATE FUNCTION relay_wake_publisher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  asleep BOOLEAN;
  told TEXT;
BEGIN
  SELECT sleeping, CASE WHEN brake_until > clock_timestamp() THEN brake END INTO asleep, told FROM relay_wakeup;
  IF asleep THEN
    PERFORM pg_notify('relay_outbox', '');
  END IF;
  IF told IS NOT NULL THEN
    PERFORM relay_brake_producer(told);
  END IF;
  RETURN NULL;
END $$;

-- Before the insert, for the brake. A hint goes at the commit in any case.
CREATE TRIGGER relay_wake_publisher BEFORE INSERT ON outbox_events
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_wake_publisher();

-- A hint for tasks, as for events: a task begins at once, not at the next poll (DESIGN §5 and §8).
CREATE FUNCTION relay_wake_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  IF (SELECT sleeping FROM relay_wakeup) THEN
    PERFORM pg_notify('relay_outbox', 'tasks');
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER relay_wake_tasks AFTER INSERT ON task_outbox
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_wake_tasks();
