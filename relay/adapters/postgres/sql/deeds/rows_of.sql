-- The rows of an act, and those of them that a later act on rows of their kind has changed.
SELECT a.action, a.ids,
       ARRAY(SELECT later.it
             FROM audit_log AS l, unnest(l.ids) AS later (it)
             WHERE l.id > a.id AND l.action LIKE split_part(a.action, '.', 1) || '.%%' AND l.ids && a.ids
               AND later.it = ANY (a.ids)) AS changed
FROM audit_log AS a
WHERE a.id = %(id)s
