-- The handler is still running: extend the claim.
UPDATE inbox_messages
SET claimed_until = now() + %(lease)s
WHERE message_id = %(message_id)s AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
