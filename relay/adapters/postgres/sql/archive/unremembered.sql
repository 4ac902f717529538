-- Batches of messages whose ids are not kept: they left before ids were kept.
SELECT kind, number, rows, size, sha256, first_id, first_at, last_id, last_at
FROM archive_batches AS b
WHERE kind = 'inbox'
  AND deleted_at IS NULL
  AND NOT EXISTS (SELECT FROM archived_messages AS a WHERE a.message_id = b.first_id)
ORDER BY number
