-- The handler is still running: extend the claim.
UPDATE task_outbox
SET claimed_until = clock_timestamp() + %(lease)s
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
