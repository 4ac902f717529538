-- Of archived events whose rows are back in their table: those that nobody has replayed since. Locks them.
--
-- They are looked up by their ids alone. Where most rows wait, as in the middle of a replay, the planner takes the
-- published ones for a few, and would begin with them.
WITH back AS MATERIALIZED (
    SELECT e.id, e.seq, e.published_at, e.generation = archived.generation AS same
    FROM unnest(%(lines)s::text[]) AS line,
         json_to_record(line::json) AS archived (id uuid, generation int)
    JOIN outbox_events AS e USING (id)
    FOR UPDATE OF e
)
SELECT id FROM back WHERE same AND published_at IS NOT NULL ORDER BY seq
