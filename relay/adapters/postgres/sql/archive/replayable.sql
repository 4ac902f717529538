-- Archived events whose rows are back in their table, without those that were replayed since or are discarded. Locks them.
--
-- They are found only by their ids. If most rows wait, as in the middle of a replay, the planner believes that few
-- rows are published, and would begin with those.
WITH back AS MATERIALIZED (
    SELECT e.id, e.seq, e.published_at, e.dead_at, e.generation = archived.generation AS same
    FROM unnest(%(lines)s::text[]) AS line,
         json_to_record(line::json) AS archived (id uuid, generation int)
    JOIN outbox_events AS e USING (id)
    FOR UPDATE OF e
)
SELECT id FROM back WHERE same AND published_at IS NOT NULL AND dead_at IS NULL ORDER BY seq
