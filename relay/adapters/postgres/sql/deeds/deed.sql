-- One act with its first rows, the act that it undoes, and the one that undid it.
SELECT a.id, a.at, a.actor, a.action, a.note, ARRAY(SELECT left(it, 200) FROM unnest(a.ids[1:100]) AS it) AS ids,
       cardinality(a.ids) AS count, a.undoes, (SELECT u.id FROM audit_log AS u WHERE u.undoes = a.id) AS undone_by,
       a.about
FROM audit_log AS a
WHERE a.id = %(id)s
