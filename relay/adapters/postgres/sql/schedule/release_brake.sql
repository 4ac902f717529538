-- End the brake.
UPDATE relay_wakeup
SET brake = NULL, brake_delay = NULL, brake_reason = NULL, brake_since = NULL, brake_until = NULL
WHERE brake IS NOT NULL
