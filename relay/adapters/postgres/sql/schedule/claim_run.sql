-- Claim a run, unless another worker has it or an earlier run of the job is still running.
UPDATE scheduled_runs AS run
SET state = 'started',
    attempts = least(attempts, 2147483646) + 1,
    who = %(who)s,
    started_at = clock_timestamp(),
    claim_token = %(token)s,
    claimed_until = clock_timestamp() + %(lease)s
WHERE job = %(job)s AND scheduled_for = %(scheduled_for)s
  AND (state = 'waiting' OR state = 'started' AND claimed_until <= clock_timestamp())
  AND NOT EXISTS (SELECT FROM scheduled_runs WHERE job = %(job)s AND state = 'started' AND id <> run.id)
RETURNING correlation_id, attempts
