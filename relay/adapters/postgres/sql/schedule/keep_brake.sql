-- Prolong the brake. A brake that has ended by itself does not begin again.
UPDATE relay_wakeup
SET brake_until = greatest(brake_until, clock_timestamp() + %(hold)s)
WHERE brake_until > clock_timestamp()
