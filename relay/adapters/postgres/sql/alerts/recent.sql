-- Which alerts were posted within the last minute: the seconds since the last one of a group, and how many.
SELECT class, subject_type, subject, extract(epoch FROM clock_timestamp() - max(sent_at))::float8 AS seconds,
       count(DISTINCT sent_at) AS count
FROM alerts
WHERE sent_at > clock_timestamp() - interval '1 minute'
GROUP BY class, subject_type, subject
