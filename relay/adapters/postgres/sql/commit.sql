-- Keep what the transaction has written.
COMMIT
