-- Record the verdict before the dead letter is published, so that a crash in between does not call the handler
-- again.
UPDATE inbox_messages
SET dead_letter_reason = %(reason)s, dead_letter_class = %(kind)s, last_error = %(reason)s,
    attempt_log = relay_noted(attempt_log, %(note)s::jsonb || jsonb_build_object(
        'n', attempts, 'round', requeues, 'at', clock_timestamp(), 'claim', claim_token))
WHERE message_id = %(message_id)s AND claim_token = %(token)s
