-- The highest seq that any event was given so far, committed or not.
SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM outbox_events_seq_seq
