-- The run goes on: extend the claim.
UPDATE scheduled_runs SET claimed_until = clock_timestamp() + %(lease)s
WHERE job = %(job)s AND scheduled_for = %(scheduled_for)s AND claim_token = %(token)s
