-- Keep which rows were counted for an act. Selections of the day before are forgotten.
WITH forgotten AS (DELETE FROM selections WHERE made_at < now() - interval '1 day')
INSERT INTO selections (id, kind, action, ids, wanted)
VALUES (%(id)s, %(kind)s, %(action)s, %(ids)s::text[], %(wanted)s::jsonb)
