-- Rows that an operator has stopped. No column says so: a held message has a back-off without an end, a discarded one is
-- processed with the class `discarded`, a discarded event is both published and dead. So every claim leaves them out by a
-- condition that it has anyway.

-- A discarded event is no failure: only one that is not published raises an alert.
CREATE OR REPLACE TRIGGER relay_raise_alert AFTER UPDATE OF dead_at ON outbox_events
  FOR EACH ROW
  WHEN (NEW.dead_at IS NOT NULL AND OLD.dead_at IS NULL AND NEW.published_at IS NULL)
  EXECUTE FUNCTION relay_raise_alert();

-- Whether a message says so in its payload: by itself, or in an envelope as `payload` or `data`. False if it is no JSON.
CREATE FUNCTION relay_body_has(body BYTEA, path TEXT[], value TEXT) RETURNS BOOLEAN
LANGUAGE plpgsql STABLE AS $$
DECLARE
  document JSONB;
BEGIN
  BEGIN
    document := convert_from(body, 'UTF8')::jsonb;
  EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
  END;
  RETURN coalesce(document #>> path = value, false)
      OR coalesce(document #>> array_prepend('payload', path) = value, false)
      OR coalesce(document #>> array_prepend('data', path) = value, false);
END $$;
