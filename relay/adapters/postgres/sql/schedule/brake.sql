-- The brake as it is now.
SELECT held.brake AS action, held.brake_reason AS reason, held.brake_since AS since
FROM relay_wakeup LEFT JOIN relay_wakeup AS held ON held.brake_until > clock_timestamp()
