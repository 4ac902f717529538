-- The handlers of a chunk are still running: extend the claims that are left.
UPDATE inbox_messages
SET claimed_until = now() + %(lease)s
WHERE message_id = ANY (%(ids)s::uuid[]) AND claim_token = %(token)s AND num_nonnulls(processed_at) = 0
