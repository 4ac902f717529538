-- How many tasks of a key are running. A task whose worker died counts until its lease expires.
SELECT count(*)
FROM task_outbox
WHERE concurrency_key = %(key)s
  AND claim_token IS NOT NULL
  AND claimed_until >= clock_timestamp()
