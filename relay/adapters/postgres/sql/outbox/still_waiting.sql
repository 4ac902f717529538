-- How many of some events wait to be published: by the ids of their rows, or by texts that stand for these.
SELECT count(*) FROM outbox_events
WHERE (id = ANY (%(rows)s) OR (originals ->> 'id') = ANY (%(texts)s))
  AND published_at IS NULL AND dead_at IS NULL
