-- The task has failed for good and waits for an operator.
UPDATE task_outbox
SET status = 'failed', finished_at = clock_timestamp(), last_error = %(error)s, next_attempt_at = NULL,
    claim_token = NULL, claimed_until = NULL,
    attempt_log = relay_noted(attempt_log, %(note)s::jsonb || jsonb_build_object(
        'n', attempts, 'at', clock_timestamp(), 'claim', claim_token))
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
