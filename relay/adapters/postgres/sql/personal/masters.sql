-- How many keys each master key wraps.
SELECT master, count(*)
FROM subject_keys
WHERE forgotten_at IS NULL
GROUP BY master
ORDER BY master
