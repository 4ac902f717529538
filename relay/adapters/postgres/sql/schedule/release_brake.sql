-- Tell producers that the outbox takes events as always.
UPDATE relay_wakeup
SET brake = NULL, brake_delay = NULL, brake_reason = NULL, brake_since = NULL, brake_until = NULL
WHERE brake IS NOT NULL
