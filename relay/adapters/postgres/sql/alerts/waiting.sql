-- Whether anything must be told. Both indexes are empty almost always.
SELECT EXISTS (SELECT FROM alerts WHERE sent_at IS NULL)
    OR EXISTS (
        SELECT FROM dead_letters AS d
        WHERE alerted_at IS NULL AND status = 'open' AND relay_incident_state(d) = 'open') AS waiting
