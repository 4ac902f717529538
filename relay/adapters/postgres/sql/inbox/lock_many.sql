-- Lock messages for an operator's action. This waits for a worker that settles them.
SELECT message_id,
       CASE WHEN processed_at IS NOT NULL
                 THEN CASE WHEN dead_letter_class IN ('discarded', 'expired') THEN dead_letter_class ELSE 'processed' END
            WHEN dead_lettered_at IS NOT NULL THEN 'dead'
            WHEN claimed_until >= clock_timestamp() THEN 'running'
            WHEN next_attempt_at = 'infinity' THEN 'held'
            WHEN enqueued_at = 'infinity' THEN 'parked'
            WHEN num_nonnulls(last_error, dead_letter_reason) > 0 THEN 'failing'
            ELSE 'waiting' END AS status,
       (SELECT d.id
        FROM dead_letters AS d
        WHERE d.message_id = i.message_id AND d.occurrence = i.requeues + 1 AND i.dead_lettered_at IS NOT NULL) AS incident,
       coalesce(expires_at <= clock_timestamp(), false) AS stale
FROM inbox_messages AS i
WHERE message_id = ANY (%(ids)s::uuid[])
ORDER BY message_id
FOR UPDATE
