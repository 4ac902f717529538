-- Tasks that run now.
SELECT 'task' AS kind, coalesce(originals ->> 'id', id::text) AS id, id::text AS row_id, queue AS part, type AS name,
       attempts, claim_token, claimed_until, started_at
FROM task_outbox
WHERE claim_token IS NOT NULL AND claimed_until >= now()
LIMIT %(limit)s
