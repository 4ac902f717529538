-- Keep which rows were counted for an act. Older selections are forgotten.
WITH forgotten AS (DELETE FROM selections WHERE made_at < now() - %(kept)s::interval)
INSERT INTO selections (id, kind, action, ids, wanted)
VALUES (%(id)s, %(kind)s, %(action)s, %(ids)s::text[], %(wanted)s::jsonb)
