-- Since when the oldest row of a table could go, or is there, each by the first entry of an index.
SELECT 'outbox_events', (SELECT min(published_at) FROM outbox_events WHERE published_at IS NOT NULL)
UNION ALL
SELECT 'inbox_messages', (SELECT min(processed_at) FROM inbox_messages WHERE processed_at IS NOT NULL)
UNION ALL
SELECT 'task_outbox', (SELECT min(finished_at) FROM task_outbox WHERE finished_at IS NOT NULL)
UNION ALL
SELECT 'processed_events', (SELECT min(processed_at) FROM processed_events)
UNION ALL
SELECT 'alerts', (SELECT raised_at FROM alerts ORDER BY id LIMIT 1)
UNION ALL
SELECT 'scheduled_runs', (SELECT min(opened_at) FROM scheduled_runs)
UNION ALL
SELECT 'history', (SELECT min(at) FROM history WHERE step = 'hour')
UNION ALL
SELECT 'selections', (SELECT min(made_at) FROM selections)
UNION ALL
SELECT 'dead_letters', (SELECT recorded_at FROM dead_letters ORDER BY id LIMIT 1)
UNION ALL
SELECT 'audit_log', (SELECT min(at) FROM audit_log)
UNION ALL
SELECT 'inbox_replays', (SELECT asked_at FROM inbox_replays ORDER BY id LIMIT 1)
