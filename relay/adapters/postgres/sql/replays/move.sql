-- Note how far a replay has come, and keep its claim. Nothing is returned if it was stopped, or the claim is lost.
UPDATE inbox_replays
SET source = %(source)s, position = %(position)s, part = %(part)s, batch = %(batch)s,
    last_position = coalesce(%(last_position)s, last_position),
    added = added + %(added)s, repeated = repeated + %(repeated)s, skipped = skipped + %(skipped)s,
    error = NULL, moved_at = clock_timestamp(), claimed_until = clock_timestamp() + %(lease)s
WHERE id = %(id)s AND claim_token = %(token)s AND state = 'running'
RETURNING id
