-- Record a batch that leaves its table, in the transaction that deletes its rows.
INSERT INTO archive_batches (kind, number, rows, size, sha256, first_id, first_at, last_id, last_at, archived_at)
VALUES (%(kind)s, %(number)s, %(rows)s, %(size)s, %(sha256)s, %(first_id)s, %(first_at)s, %(last_id)s,
        %(last_at)s, clock_timestamp())
