-- Keys that another master key wraps, by their ids: a page.
SELECT id, master, wrapped
FROM subject_keys
WHERE forgotten_at IS NULL AND master = %(master)s AND id > %(after)s
ORDER BY id
LIMIT %(limit)s
