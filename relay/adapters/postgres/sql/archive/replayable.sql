-- Of archived events whose rows are back in their table: those that nobody has replayed since. Locks them.
SELECT e.id
FROM unnest(%(lines)s::text[]) AS line,
     json_to_record(line::json) AS archived (id uuid, generation int)
JOIN outbox_events AS e USING (id)
WHERE e.generation = archived.generation AND e.published_at IS NOT NULL
ORDER BY e.seq
FOR UPDATE OF e
