-- The correction of an incident has run, and with which end.
UPDATE dead_letters
SET corrected_at = clock_timestamp(), correction = %(correction)s
WHERE id = %(id)s AND corrected_at IS NULL
