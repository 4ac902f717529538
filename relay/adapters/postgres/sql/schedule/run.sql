-- The state of a run.
SELECT state, error FROM scheduled_runs WHERE job = %(job)s AND scheduled_for = %(scheduled_for)s
