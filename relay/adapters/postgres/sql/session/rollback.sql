-- Roll the transaction back.
ROLLBACK
