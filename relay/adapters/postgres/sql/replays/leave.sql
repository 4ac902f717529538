-- Give a claim back: the replay has ended, or another worker goes on; with the error that stopped this one.
UPDATE inbox_replays
SET claim_token = NULL, claimed_until = NULL, error = %(error)s,
    state = CASE WHEN %(ended)s THEN 'finished' ELSE state END,
    ended_at = CASE WHEN %(ended)s THEN clock_timestamp() ELSE ended_at END
WHERE id = %(id)s AND claim_token = %(token)s AND state = 'running'
