-- How many tasks of a key run. One whose worker died counts until its lease is over.
SELECT count(*)
FROM task_outbox
WHERE concurrency_key = %(key)s
  AND claim_token IS NOT NULL
  AND claimed_until >= clock_timestamp()
