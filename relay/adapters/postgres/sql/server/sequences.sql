-- Sequences that stand below the numbers of their tables.
SELECT sequence::text, last_number, highest FROM relay_sequences_behind()
