-- Rows whose ids lie between two, or that are about given events: what kind of rows, and which. The newest first.
(SELECT 'events', id::text
 FROM outbox_events
 WHERE id BETWEEN %(low)s::uuid AND %(high)s::uuid OR id = ANY (%(ids)s::uuid[])
 ORDER BY id DESC
 LIMIT %(limit)s)
UNION ALL
(SELECT 'inbox', message_id::text
 FROM inbox_messages
 WHERE message_id BETWEEN %(low)s::uuid AND %(high)s::uuid OR message_id = ANY (%(ids)s::uuid[])
    OR source_id = ANY (%(ids)s::uuid[])
 ORDER BY message_id DESC
 LIMIT %(limit)s)
UNION ALL
(SELECT 'dead-letters', id::text
 FROM dead_letters
 WHERE message_id BETWEEN %(low)s::uuid AND %(high)s::uuid OR message_id = ANY (%(ids)s::uuid[])
 ORDER BY id DESC
 LIMIT %(limit)s)
UNION ALL
(SELECT 'tasks', id::text
 FROM task_outbox
 WHERE id BETWEEN %(low)s::uuid AND %(high)s::uuid
 ORDER BY id DESC
 LIMIT %(limit)s)
