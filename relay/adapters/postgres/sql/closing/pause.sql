-- Pause publishing, unless an operator has.
INSERT INTO controls AS known (what, name, act, reason, by)
VALUES ('publishing', '', 'pause', %(reason)s, %(by)s)
ON CONFLICT (what, name, act) DO UPDATE
SET until = NULL, reason = excluded.reason, by = excluded.by, since = excluded.since
WHERE known.until <= clock_timestamp()
RETURNING what
