-- Forget that the archive has messages of a subscription, so that its inbox takes them anew.
DELETE FROM archived_messages
WHERE (message_id = ANY (%(ids)s::uuid[]) AND source_id IS NULL OR source_id = ANY (%(ids)s::uuid[]))
  AND (subscription IS NULL OR subscription = %(subscription)s)
