-- Release the advisory locks that a function has left to the session. Tells whether the function may have left more:
-- channels, open cursors, temporary tables.
SELECT EXISTS (SELECT FROM pg_listening_channels())
       OR EXISTS (SELECT FROM pg_cursors WHERE is_holdable)
       OR pg_my_temp_schema() <> 0 AS more,
       pg_advisory_unlock_all()
