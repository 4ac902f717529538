-- The largest gaps among the latest entries of the ledger, and before the first one. Reads only the index.
SELECT before + 1, next - 1
FROM (SELECT published_seq AS next,
             coalesce(lead(published_seq) OVER (ORDER BY published_seq DESC), %(first)s::bigint - 1) AS before
      FROM (SELECT published_seq
            FROM outbox_events
            WHERE published_stream = %(stream)s AND published_seq IS NOT NULL
            ORDER BY published_seq DESC
            LIMIT %(limit)s) AS latest) AS pair
WHERE next - before > 1 AND next > %(first)s
ORDER BY next - before DESC
LIMIT %(count)s
