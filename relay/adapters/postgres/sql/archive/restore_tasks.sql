-- Put archived rows back as they were. A row that is in its table stays as it is.
-- In a line, null is the JSON null of a column that cannot be empty.
INSERT INTO task_outbox (
  id, type, payload, queue, priority, status, created_at, available_at, correlation_id, causation_id, metadata,
  concurrency_key, seq, attempts, last_error, delivered_at, enqueued_at, next_attempt_at, waits_for, started_at,
  claim_token, claimed_until, finished_at, originals, attempt_log,
  expires_at)
SELECT id, type, coalesce(payload, 'null'), queue, priority, status, created_at, available_at, correlation_id,
       causation_id, coalesce(metadata, 'null'), concurrency_key, seq, attempts, last_error, delivered_at,
       enqueued_at, next_attempt_at, waits_for, started_at, claim_token, claimed_until, finished_at, originals,
       attempt_log, expires_at
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::task_outbox, line::json)
ON CONFLICT DO NOTHING
