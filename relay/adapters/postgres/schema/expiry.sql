-- Events that are worth nothing after a time, `expires_at`: NULL for a type's default or none, infinity for never.
--
-- What expires is over without a place in the stream, as a discarded event is: both times are set. `expires_at` is not
-- after `dead_at` then, which tells the two apart. So every claim leaves it out by a condition that it has anyway.

-- As in producer_columns.sql, with the time that a producer may name now.
CREATE OR REPLACE TRIGGER chk_outbox_producer BEFORE INSERT ON outbox_events
  FOR EACH ROW WHEN (
    NEW.publish_attempts <> 0 OR NEW.generation <> 0
    OR num_nonnulls(NEW.published_at, NEW.publish_error, NEW.dead_at, NEW.published_stream, NEW.published_seq,
                    NEW.published_duplicate) > 0
    OR NEW.available_at < '0001-01-02 00:00+00' OR NEW.available_at >= '9999-12-31 00:00+00'
    OR NEW.expires_at < '0001-01-02 00:00+00'
    OR (NEW.expires_at >= '9999-12-31 00:00+00' AND NEW.expires_at < 'infinity')
    OR NEW.occurred_at < '0001-01-02 00:00+00'
    OR jsonb_typeof(NEW.headers) <> 'object' OR jsonb_typeof(NEW.originals) <> 'object')
  EXECUTE FUNCTION relay_refuse_engine_columns();
