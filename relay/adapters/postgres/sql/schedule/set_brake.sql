-- Begin or prolong the brake, for so long. The time of its beginning stays.
UPDATE relay_wakeup
SET brake = %(action)s,
    brake_delay = %(delay)s,
    brake_reason = %(reason)s,
    brake_since = CASE WHEN brake_until > clock_timestamp() THEN brake_since ELSE clock_timestamp() END,
    brake_until = clock_timestamp() + %(hold)s
