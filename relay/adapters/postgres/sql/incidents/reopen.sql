-- Take the decision on closed incidents back: they are as open, or as snoozed, as before. Nothing runs, and a key that
-- went on without its message does not wait again. The audit log keeps what was decided.
UPDATE dead_letters
SET status = 'open', closed_at = NULL, closed_by = NULL, note = NULL
WHERE id = ANY (%(ids)s::bigint[])
