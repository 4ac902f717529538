-- The streams that a context's events were published to, by what has left the outbox, and those that held its dead
-- letters, by the newest incidents.
SELECT stream FROM archived_events
UNION
SELECT letter_stream
FROM (SELECT letter_stream FROM dead_letters ORDER BY id DESC LIMIT %(looked)s) AS newest
WHERE letter_stream IS NOT NULL
