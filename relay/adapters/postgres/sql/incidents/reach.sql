-- Where a short look at dead letters ends, from the newest on; nothing where it sees all. An index has the open ones
-- by time. Others are in the order of their numbers, which is nearly that of their times.
SELECT 'recorded' AS read_in,
       CASE WHEN %(stored)s::text[] <@ '{open}'
            THEN (SELECT recorded_at
                  FROM dead_letters
                  WHERE status = 'open'
                  ORDER BY recorded_at DESC
                  OFFSET %(window)s
                  LIMIT 1)
            ELSE (SELECT recorded_at
                  FROM dead_letters
                  ORDER BY id DESC
                  OFFSET %(window)s
                  LIMIT 1) END AS since,
       NULL::timestamptz AS until
