-- The range of sequences that two events claim, among the latest: a stream that lost its last messages gives the
-- same numbers again. Without a loss there are none, and the inner query reads only the index.
WITH twice AS MATERIALIZED (
    SELECT published_seq
    FROM (SELECT published_seq
          FROM outbox_events
          WHERE published_stream = %(stream)s AND published_seq IS NOT NULL
          ORDER BY published_seq DESC
          LIMIT %(limit)s) AS latest
    GROUP BY published_seq
    HAVING count(*) > 1
)
SELECT min(seq), max(seq)
FROM (SELECT published_seq AS seq
      FROM twice
      JOIN outbox_events USING (published_seq)
      WHERE published_stream = %(stream)s
        AND published_at IS NOT NULL
        AND (%(max_age)s::interval IS NULL OR published_at > clock_timestamp() - %(max_age)s::interval)
      GROUP BY published_seq
      HAVING count(*) > 1) AS reused
