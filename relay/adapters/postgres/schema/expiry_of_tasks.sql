-- A task that expires is over as a cancelled one is; `expires_at` is not after `finished_at` then.

-- As in producer_columns.sql, with the time that a producer may name now.
CREATE OR REPLACE TRIGGER chk_task_producer BEFORE INSERT ON task_outbox
  FOR EACH ROW WHEN (
    NEW.status <> 'pending' OR NEW.attempts <> 0
    OR num_nonnulls(NEW.last_error, NEW.delivered_at, NEW.enqueued_at, NEW.next_attempt_at, NEW.waits_for,
                    NEW.started_at, NEW.claim_token, NEW.claimed_until, NEW.finished_at) > 0
    OR NEW.available_at < '0001-01-02 00:00+00' OR NEW.available_at >= '9999-12-31 00:00+00'
    OR NEW.expires_at < '0001-01-02 00:00+00'
    OR (NEW.expires_at >= '9999-12-31 00:00+00' AND NEW.expires_at < 'infinity')
    OR NEW.created_at < '0001-01-02 00:00+00' OR NEW.created_at >= '9999-12-31 00:00+00'
    OR jsonb_typeof(NEW.metadata) <> 'object' OR jsonb_typeof(NEW.originals) <> 'object'
    OR octet_length(NEW.type) > 1000 OR octet_length(NEW.concurrency_key) > 1000)
  EXECUTE FUNCTION relay_refuse_engine_columns();
