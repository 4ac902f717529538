-- Open the transaction of a claim. Its rules need a new snapshot for each statement, whatever is set for the database.
BEGIN ISOLATION LEVEL READ COMMITTED
