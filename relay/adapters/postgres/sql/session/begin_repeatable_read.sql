-- Open the transaction of a function in a database whose transactions read one snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ
