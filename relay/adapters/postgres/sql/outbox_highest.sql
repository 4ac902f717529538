-- The highest place that any event has been given so far, committed or not.
SELECT last_value FROM outbox_events_seq_seq
