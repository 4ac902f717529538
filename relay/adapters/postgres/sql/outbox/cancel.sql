-- Cancel events in the caller's transaction; returns those that had not left.
SELECT id FROM relay_cancel_events(%(ids)s::uuid[], %(key)s::text) AS id
