-- The handler is still running, or those of a chunk: extend the claims that are left.
UPDATE inbox_messages
SET claimed_until = now() + %(lease)s
WHERE message_id = ANY (%(ids)s::uuid[]) AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
