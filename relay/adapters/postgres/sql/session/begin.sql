-- Open a transaction.
BEGIN
