-- Where a short look at finished tasks ends, from the newest on; nothing where it sees all.
SELECT 'finished' AS read_in,
       (SELECT finished_at
        FROM task_outbox
        WHERE finished_at IS NOT NULL
          AND (%(since)s::timestamptz IS NULL OR finished_at >= %(since)s - interval '1 hour')
        ORDER BY finished_at DESC
        OFFSET %(window)s
        LIMIT 1) AS since,
       NULL::timestamptz AS until
WHERE %(statuses)s::text[] && '{completed,cancelled}'
