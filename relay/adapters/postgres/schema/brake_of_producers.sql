-- Anybody may take the name of our sessions. So only a role that may publish is taken for the relay: it may change events,
-- which a producer may not. Within the trigger the current role is the owner of the tables, so the session's counts.
CREATE OR REPLACE FUNCTION relay_brake_producer(told TEXT) RETURNS void
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
  ELSIF held.brake = 'refuse' AND NOT (
    starts_with(current_setting('application_name'), 'jetrelay-')
    AND pg_catalog.has_table_privilege(session_user, 'outbox_events', 'UPDATE')) THEN
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
