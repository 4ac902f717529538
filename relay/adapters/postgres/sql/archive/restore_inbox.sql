-- Put archived rows back as they were. A row that is in its table stays as it is.
-- In a line, null is the JSON null of a column that cannot be empty.
INSERT INTO inbox_messages (
  message_id, subject, received_at, processed_at, attempts, last_error, subscription, stream, stream_seq,
  ack_subject, body, headers, event_type, event_version, occurred_at, partition_key, correlation_id,
  causation_id, next_attempt_at, enqueued_at, claim_token, claimed_until, dead_letter_reason, dead_letter_class,
  dead_lettered_at, requeues, order_key, order_seq, stepped_over, originals, source_id, let_go_at, attempt_log,
  expires_at)
SELECT message_id, subject, received_at, processed_at, attempts, last_error, subscription, stream, stream_seq,
       ack_subject, body, coalesce(headers, 'null'), event_type, event_version, occurred_at, partition_key,
       correlation_id, causation_id, next_attempt_at, enqueued_at, claim_token, claimed_until,
       dead_letter_reason, dead_letter_class, dead_lettered_at, requeues, order_key, order_seq, stepped_over,
       originals, source_id, let_go_at, attempt_log, expires_at
FROM unnest(%(lines)s::text[]) AS line, json_populate_record(NULL::inbox_messages, line::json)
ON CONFLICT DO NOTHING
