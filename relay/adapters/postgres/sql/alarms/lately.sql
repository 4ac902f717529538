-- What alarms are about and no backlog says: how many of it happened within %(within)s, and since how many seconds it
-- has been more than %(surge)s for a surge, and more than none for all others. No part reads more than %(counted)s rows.
-- Of dead letters the last ones are looked at: they are recorded in the order of their ids.
SELECT 'surge' AS what, coalesce(subscription, '') AS subject, count(*) AS count,
       extract(epoch FROM clock_timestamp() - (array_agg(recorded_at ORDER BY recorded_at))[%(surge)s + 1])::float8 AS since
FROM (
    SELECT CASE WHEN class <> 'unconfirmed' THEN subscription END AS subscription, recorded_at
    FROM dead_letters
    ORDER BY id DESC
    LIMIT %(counted)s) AS last
WHERE recorded_at > clock_timestamp() - %(within)s::interval
GROUP BY 2
UNION ALL
SELECT class, subject, count(*), extract(epoch FROM clock_timestamp() - min(raised_at))::float8
FROM (
    SELECT class, CASE WHEN class IN ('failed_run', 'missed_run') THEN subject ELSE '' END AS subject, raised_at
    FROM alerts
    WHERE class IN ('failed_run', 'missed_run', 'failed_correction', 'condition')
      AND raised_at > clock_timestamp() - %(within)s::interval
    LIMIT %(counted)s) AS raised
GROUP BY class, subject
UNION ALL
SELECT 'unsent', '', count(*), extract(epoch FROM clock_timestamp() - min(raised_at))::float8
FROM (SELECT raised_at FROM alerts WHERE sent_at IS NULL ORDER BY id LIMIT %(counted)s) AS unsent
HAVING count(*) > 0
UNION ALL
SELECT 'orphans', stream, count(*), extract(epoch FROM clock_timestamp() - min(found_at))::float8
FROM (SELECT stream, found_at FROM orphaned_events LIMIT %(counted)s) AS orphans
WHERE found_at > clock_timestamp() - %(within)s::interval
GROUP BY stream
