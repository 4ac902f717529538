-- Commit the transaction.
COMMIT
