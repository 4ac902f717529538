-- Undo what the transaction has written.
ROLLBACK
