-- An attempt is over: either it ended the run, or the next attempt is due after a delay. If the job only asked to be
-- run later, this was no attempt: ``uncounted`` is 1.
UPDATE scheduled_runs
SET state = %(state)s,
    error = %(error)s,
    attempts = attempts - %(uncounted)s,
    finished_at = CASE WHEN %(state)s <> 'waiting' THEN clock_timestamp() END,
    available_at = CASE WHEN %(state)s = 'waiting' THEN clock_timestamp() + %(delay)s END,
    claim_token = NULL,
    claimed_until = NULL
WHERE job = %(job)s AND scheduled_for = %(scheduled_for)s AND claim_token = %(token)s
