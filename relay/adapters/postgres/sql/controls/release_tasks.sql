-- Let tasks go on that were put off because their type or queue was paused, or by a limit. The sweep then delivers them: so many at a
-- time, because each is a row to write.
UPDATE task_outbox
SET next_attempt_at = clock_timestamp(), enqueued_at = clock_timestamp() - interval '1 hour', waits_for = NULL
WHERE id = ANY (ARRAY(
    SELECT id
    FROM task_outbox
    WHERE status = 'delivered' AND waits_for = ANY (%(waits_for)s::text[])
      AND CASE %(what)s WHEN 'task_queue' THEN queue ELSE type END = %(name)s
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED))
