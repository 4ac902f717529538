-- The conditions that last: alarms with their values at the last look, and errors that `relay health` finds.
SELECT class, code, subject, since, value
FROM alert_conditions
ORDER BY since
LIMIT %(counted)s
