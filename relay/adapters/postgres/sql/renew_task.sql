-- The handler is still at work: extend the claim.
UPDATE task_outbox
SET claimed_until = clock_timestamp() + %(lease)s
WHERE id = %(id)s AND claim_token IS NOT DISTINCT FROM %(token)s
